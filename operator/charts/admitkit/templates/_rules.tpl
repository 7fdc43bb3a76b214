{{/* The rules of the roles. Those of extensions are files that make generate writes. The others depend on names that only
     the release knows, so they are written here; a test compares all of them with what `admitkit manifests` prints. */}}

{{/*
A Role with its binding, or without a namespace a ClusterRole. Takes root, name, namespace, account, hook, and rules or aggregate,
a label of ClusterRoles whose rules kube-controller-manager writes into this one.
*/}}
{{- define "admitkit.role" -}}
{{- if or .rules .aggregate }}
{{- $kind := ternary "Role" "ClusterRole" (ne .namespace "") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  {{- include "admitkit.roleMeta" . | nindent 2 }}
{{- with .aggregate }}
aggregationRule:
  clusterRoleSelectors:
  - matchLabels:
      {{ . }}: "true"
{{- else }}
rules:
{{ trim .rules }}
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  {{- include "admitkit.roleMeta" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .name }}
subjects:
- kind: ServiceAccount
  name: {{ .account | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
{{- end }}
{{- end -}}

{{/*
What an account may do by the extensions: a Role in each namespace, and a ClusterRole. Takes root, account, the name of the Roles,
clusterRole if that has another name, the rules watched, access and cluster, binding with those of each namespace, and the hook that the ClusterRole belongs to. Each
rule is there once, whichever process needs it.
*/}}
{{- define "admitkit.roles" -}}
{{- $of := . -}}
{{- $rules := dict "" .cluster -}}
{{- range .root.Values.watchNamespaces | default (list "") -}}
{{- $_ := set $rules . (printf "%s\n%s" (get $rules .) $of.watched) -}}
{{- end -}}
{{- range include "admitkit.placesOfAccess" .root | fromJsonArray -}}
{{- $_ := set $rules . (printf "%s\n%s" (get $rules .) $of.access) -}}
{{- end -}}
{{- if .binds -}}
{{- range $namespace, $text := include "admitkit.bindRules" .root | fromYaml -}}
{{- $_ := set $rules $namespace (printf "%s\n%s" (get $rules $namespace) (toYaml $text)) -}}
{{- end -}}
{{- end -}}
{{- range $namespace, $text := .binding -}}
{{- $_ := set $rules $namespace (printf "%s\n%s" (get $rules $namespace) $text) -}}
{{- end -}}
{{- range $namespace, $text := $rules -}}
{{- with $text | fromYamlArray | uniq -}}
{{- $role := dict "root" $of.root "account" $of.account "namespace" $namespace "rules" (toYaml .) -}}
{{- if $namespace -}}
{{- $_ := set $role "name" (printf "%s-%s" (include "admitkit.fullname" $of.root) $of.name) -}}
{{- else -}}
{{- $_ := set $role "name" (printf "%s-%s" (include "admitkit.clusterName" $of.root) ($of.clusterRole | default $of.name)) -}}
{{- $_ := set $role "hook" $of.hook -}}
{{- end -}}
{{- include "admitkit.role" $role -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The same for an account that runs processes: "" is what serves, "reconciler." what reconciles, and "scanner." what scans. Takes root, name, account and processes. */}}
{{- define "admitkit.extensionRoles" -}}
{{- $of := dict "watched" "" "access" "" "cluster" "" "binds" (has "reconciler." .processes) "binding" (dict) -}}
{{- range $process := .processes -}}
{{- $in := dict "root" $.root "process" $process -}}
{{- range $namespace, $rules := include "admitkit.bindingRules" $in | fromJson -}}
{{- $_ := set $of.binding $namespace (printf "%s\n%s" (get $of.binding $namespace) $rules) -}}
{{- end -}}
{{- range $namespace, $rules := include "admitkit.egressRules" $in | fromJson -}}
{{- $_ := set $of.binding $namespace (printf "%s\n%s" (get $of.binding $namespace) $rules) -}}
{{- end -}}
{{- range $namespace, $rules := include "admitkit.placesOfSessions" $in | fromJson -}}
{{- $_ := set $of.binding $namespace (printf "%s\n%s" (get $of.binding $namespace) $rules) -}}
{{- end -}}
{{- $_ := set $of "watched" (printf "%s\n%s" $of.watched (include "admitkit.watchedRules" $in)) -}}
{{- $_ := set $of "access" (printf "%s\n%s" $of.access (include "admitkit.accessRules" $in)) -}}
{{- $_ := set $of "cluster" (printf "%s\n%s" $of.cluster (include "admitkit.clusterRules" $in)) -}}
{{- end -}}
{{- include "admitkit.roles" (merge $of .) -}}
{{- end -}}

{{/*
The roles that what reconciles may bind, by namespace, "" for everywhere: exactly those that the values name. A Role only in its
own namespace, since a ClusterRole would cover that name everywhere. ClusterRoles are watched.
*/}}
{{- define "admitkit.bindRules" -}}
{{- $rules := dict -}}
{{- if .Values.access.enabled -}}
{{- range .Values.access.roles -}}
{{- $namespace := regexFind "^[^/]*" . -}}
{{- $rule := dict "apiGroups" (list "rbac.authorization.k8s.io") "resources" (list "roles") "resourceNames" (list (trimPrefix (printf "%s/" $namespace) .)) "verbs" (list "bind") -}}
{{- $_ := set $rules $namespace (append (get $rules $namespace | default list) $rule) -}}
{{- end -}}
{{- with .Values.access.clusterRoles -}}
{{- $rule := dict "apiGroups" (list "rbac.authorization.k8s.io") "resources" (list "clusterroles") "resourceNames" . -}}
{{- range include "admitkit.placesOfAccess" $ | fromJsonArray -}}
{{- $_ := set $rules . (append (get $rules . | default list) (merge (dict "verbs" (list "bind")) $rule)) -}}
{{- end -}}
{{- $_ := set $rules "" (append (get $rules "" | default list) (merge (dict "verbs" (list "get" "list" "watch")) $rule)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end -}}

{{- define "admitkit.roleMeta" -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . | quote }}
{{- end }}
labels:
  {{- include "admitkit.labels" .root | nindent 2 }}
{{- with .hook }}
annotations:
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Name of a ClusterRole: there may be a release of this name in another namespace. */}}
{{- define "admitkit.clusterName" -}}
{{ .Release.Namespace }}:{{ include "admitkit.fullname" . }}
{{- end -}}

{{/* What registers: in its namespace ... */}}
{{- define "admitkit.registrarRules" -}}
- apiGroups: [""]
  resources: [secrets, events, configmaps] # the probe is a dry run: no ConfigMap is made
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ include "admitkit.ownSecrets" . }}
  verbs: [get, watch, update, delete]
{{- end -}}

{{/* ... and in the cluster. */}}
{{- define "admitkit.registrarClusterRules" -}}
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
  resourceNames: [{{ include "admitkit.configuration" . }}]
  verbs: [get, list, watch, create, patch, update, delete]
{{- include "admitkit.conversionRules" (list . "get, watch, patch") }}
{{- with .Values.watchNamespaces }}
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: {{ toJson . }}
  verbs: [get] # it says which of them do not exist
{{- end }}
{{- end -}}

{{/* What converts the objects of a program of your own. Takes the root and the verbs. */}}
{{- define "admitkit.conversionRules" }}
{{- with (index . 0).Values.rbac.conversions }}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: {{ toJson . }}
  verbs: [{{ index $ 1 }}]
{{- end }}
{{- end -}}

{{/* What serves, in its namespace. */}}
{{- define "admitkit.serverRules" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ ternary (include "admitkit.leafSecret" .) (include "admitkit.caSecret" .) (ne (include "admitkit.registrarStays" .) "") }}, {{ include "admitkit.pathsSecret" . }}]
  verbs: [get, watch]
{{- end -}}

{{/* What reconciles, in its namespace: it elects a leader. */}}
{{- define "admitkit.reconcilerRules" -}}
{{- if and .Values.leaderElection (include "admitkit.reconciles" .) -}}
{{- include "admitkit.electionRules" (include "admitkit.configuration" .) }}
{{- end }}
{{- end -}}

{{/* The rules to elect a leader. Takes the name of the Lease. */}}
{{- define "admitkit.electionRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ . }}]
  verbs: [get, update]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/*
The rules of a feature of an extension. Takes a dict of root and process, the feature, and "role" or "clusterrole". make generate
writes the files; a feature that needs nothing in a process has none.
*/}}
{{- define "admitkit.rules" }}
{{- $of := index . 0 -}}
{{- with $of.root.Files.Get (printf "files/rules/%s.%s%s.yaml" (index . 1) $of.process (index . 2)) }}
{{ trimPrefix "# Written by make generate from what the extensions say that they need." . | trim }}
{{- end }}
{{- end -}}

{{/*
The extensions' rules, in the processes that serve, in those that reconcile, or in the one that scans ("", "reconciler." or "scanner.").
Takes root and process.
Where they watch ...
*/}}
{{- define "admitkit.watchedRules" -}}
{{- $audit := .root.Values.audit -}}
{{- if and $audit.enabled (not $audit.allNamespaces) }}
{{- include "admitkit.auditRules" . }}
{{- end }}
{{- if and $audit.enabled $audit.touchedPods.evictAfter }}
{{- include "admitkit.rules" (list . "audit-evict" "role") }}
{{- end }}
{{- with .root.Values.sessions }}
{{- if not (or .namespaces .selector) }}
{{- include "admitkit.sessionRules" $ }}
{{- end }}
{{- end }}
{{- include "admitkit.extraRules" (list .process .root.Values.rbac.extraRules) }}
{{- end -}}

{{/* Rules of the values. To scan is to read. Takes the process and the rules. */}}
{{- define "admitkit.extraRules" }}
{{- $reads := eq (index . 0) "scanner." }}
{{- range index . 1 }}
{{- $verbs := list }}
{{- range .verbs }}
{{- if or (not $reads) (has . (list "get" "list" "watch")) }}{{ $verbs = append $verbs . }}{{ end }}
{{- end }}
{{- if $verbs }}
- {{ merge (dict "verbs" $verbs) . | toYaml | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- end -}}

{{/* ... where sessions are recorded ... */}}
{{- define "admitkit.sessionRules" -}}
{{- with .root.Values.sessions }}
{{- if .enabled }}
{{- include "admitkit.rules" (list $ "sessions" "role") }}
{{- if eq .unrecorded "Open" }}
{{- include "admitkit.rules" (list $ "sessions-open" "role") }}
{{- end }}
{{- if .evict }}
{{- include "admitkit.rules" (list $ "sessions-evict" "role") }}
{{- end }}
{{- if .api.enabled }}
{{- include "admitkit.rules" (list $ "sessions-api" "role") }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* ... by namespace, as JSON of YAML, with the own one, where the Service is ... */}}
{{- define "admitkit.placesOfSessions" -}}
{{- $rules := dict -}}
{{- if and .root.Values.sessions.enabled (ne .process "reconciler.") -}}
{{- range .root.Values.sessions.namespaces -}}
{{- $_ := set $rules . (include "admitkit.sessionRules" $) -}}
{{- end -}}
{{- $_ := set $rules .root.Release.Namespace (printf "- {apiGroups: [\"\"], resources: [services], resourceNames: [%s], verbs: [get]}" (include "admitkit.fullname" .root)) -}}
{{- if .root.Values.sessions.api.enabled -}}
{{- $_ := set $rules "kube-system" (printf "%s\n%s" (get $rules "kube-system") (include "admitkit.rules" (list . "sessions-api" "kube-system"))) -}}
{{- end -}}
{{- end -}}
{{- $rules | toJson -}}
{{- end -}}

{{/* ... where access is granted ... */}}
{{- define "admitkit.accessRules" -}}
{{- include "admitkit.rules" (list . "access" "role") }}
{{- if include "admitkit.holdsEgress" .root }}
{{- include "admitkit.rules" (list . "access-egress" "role") }}
{{- if .root.Values.access.egress.cilium }}
{{- include "admitkit.rules" (list . "access-egress-cilium" "role") }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Policies hold access Pods. */}}
{{- define "admitkit.holdsEgress" -}}
{{- if and .Values.access.enabled (has .Values.access.egress.networkPolicy (list "on" "auto")) }}yes{{ end -}}
{{- end -}}

{{/* ... where the API server's addresses and network plugins are, by namespace, as JSON of YAML. */}}
{{- define "admitkit.egressRules" -}}
{{- $rules := dict -}}
{{- if include "admitkit.holdsEgress" .root -}}
{{- $_ := set $rules "default" (include "admitkit.rules" (list . "access-egress" "default")) -}}
{{- if eq .root.Values.access.egress.networkPolicy "auto" -}}
{{- $_ := set $rules "kube-system" (include "admitkit.rules" (list . "access-egress-auto" "kube-system")) -}}
{{- end -}}
{{- end -}}
{{- $rules | toJson -}}
{{- end -}}

{{/* ... and everywhere. */}}
{{- define "admitkit.clusterRules" -}}
{{- $audit := .root.Values.audit -}}
{{- if and $audit.enabled $audit.allNamespaces }}
{{- include "admitkit.auditRules" . }}
{{- end }}
{{- if and $audit.enabled $audit.objects.enabled }}
{{- include "admitkit.rules" (list . "audit-objects" "clusterrole") }}
{{- end }}
{{- if and $audit.enabled $audit.enforcement.enabled }}
{{- include "admitkit.rules" (list . "audit-enforcement" "clusterrole") }}
{{- if not $audit.enforcement.namespaces }}
{{- include "admitkit.rules" (list . "audit-enforcement-label" "clusterrole") }}
{{- end }}
{{- end }}
{{- if .root.Values.access.enabled }}
{{- include "admitkit.rules" (list . "access" "clusterrole") }}
{{- end }}
{{- if include "admitkit.holdsEgress" .root }}
{{- include "admitkit.rules" (list . "access-egress" "clusterrole") }}
{{- end }}
{{- include "admitkit.bindingClusterRules" . }}
{{- if .root.Values.sessions.enabled }}
{{- include "admitkit.rules" (list . "sessions" "clusterrole") }}
{{- if .root.Values.sessions.api.enabled }}
{{- include "admitkit.rules" (list . "sessions-api" "clusterrole") }}
{{- end }}
{{- if .root.Values.sessions.selector }}
{{- include "admitkit.sessionRules" . }}
{{- include "admitkit.rules" (list . "sessions-selector" "clusterrole") }}
{{- if .root.Values.sessions.nodeProxy }}
{{- include "admitkit.rules" (list . "sessions-nodes" "clusterrole") }}
{{- end }}
{{- if and .root.Values.access.enabled (eq .root.Values.sessions.unrecorded "Closed") }}
{{- include "admitkit.rules" (list . "sessions-end" "clusterrole") }}
{{- end }}
{{- end }}
{{- end }}
{{- include "admitkit.extraRules" (list .process .root.Values.rbac.extraClusterRules) }}
{{- if and .root.Values.scan.reports (eq .process "scanner.") }}
{{- include "admitkit.rules" (list . "scan-reports" "clusterrole") }}
{{- end }}
{{- end -}}

{{/*
What binding needs, by namespace, as JSON of YAML: bind on exactly the roles that may be bound there, never in a ClusterRole for
their sake. Takes root and process.
*/}}
{{- define "admitkit.bindingRules" -}}
{{- $binds := eq .process "reconciler." -}}
{{- $rules := dict -}}
{{- range $namespace, $bindable := include "admitkit.placesOfBinding" .root | fromJson -}}
{{- $text := include "admitkit.rulesToAsk" "localsubjectaccessreviews" -}}
{{- if $binds -}}
{{- $text = printf "%s%s%s" $text (include "admitkit.rulesToBind" (list "transientrolebindings" "rolebindings")) (include "admitkit.rulesOfRoles" $bindable) -}}
{{- end -}}
{{- $_ := set $rules $namespace $text -}}
{{- end -}}
{{- if and $binds .root.Values.binding.clusterWide -}}
{{- /* The Events about cluster-scoped objects are in the namespace default. */ -}}
{{- $_ := set $rules "default" (printf "%s%s" (get $rules "default") (include "admitkit.rulesOfEvents" .)) -}}
{{- end -}}
{{- $rules | toJson -}}
{{- end -}}

{{/* ... and in the cluster. */}}
{{- define "admitkit.bindingClusterRules" }}
{{- $binding := .root.Values.binding }}
{{- $binds := eq .process "reconciler." }}
{{- if include "admitkit.binds" .root }}
{{- include "admitkit.rules" (list . "binding" "clusterrole") }}
{{- end }}
{{- if and $binds (or $binding.clusterRoles $binding.clusterWide) }}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  verbs: [get, list, watch]
{{- end }}
{{- with $binding.clusterWide }}
{{- include "admitkit.rulesToAsk" "subjectaccessreviews" }}
{{- if $binds }}
{{- include "admitkit.rulesToBind" (list "transientclusterrolebindings" "clusterrolebindings") }}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: {{ uniq . | sortAlpha | toJson }}
  verbs: [bind]
{{- end }}
{{- end }}
{{- end -}}

{{/* What asks who may bind. */}}
{{- define "admitkit.rulesToAsk" }}
- apiGroups: [authorization.k8s.io]
  resources: [{{ . }}]
  verbs: [create]
{{- end -}}

{{- define "admitkit.rulesOfEvents" }}
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/* What makes and ends bindings. Takes the resources of the objects and of the bindings. */}}
{{- define "admitkit.rulesToBind" }}
- apiGroups: [admitkit.dev]
  resources: [{{ index . 0 }}]
  verbs: [get, list, watch, delete]
- apiGroups: [admitkit.dev]
  resources: [{{ index . 0 }}/status]
  verbs: [patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [{{ index . 1 }}]
  verbs: [get, list, watch, create, patch, delete]
{{- end -}}

{{/* What a namespace has besides. Takes its roles and clusterRoles. */}}
{{- define "admitkit.rulesOfRoles" }}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles]
  verbs: [get, list, watch]
{{- include "admitkit.rulesOfEvents" . }}
{{- range $resource := list "roles" "clusterRoles" }}
{{- with get $ $resource }}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [{{ lower $resource }}]
  resourceNames: {{ uniq . | sortAlpha | toJson }}
  verbs: [bind]
{{- end }}
{{- end }}
{{- end -}}

{{/* What audit needs where it records. */}}
{{- define "admitkit.auditRules" }}
{{- $audit := .root.Values.audit -}}
{{- include "admitkit.rules" (list . "audit" "role") }}
{{- if $audit.event.enabled }}
{{- include "admitkit.rules" (list . "audit-event" "role") }}
{{- end }}
{{- if .root.Values.access.enabled }}
{{- include "admitkit.rules" (list . "audit-access" "role") }}
{{- end }}
{{- if $audit.enforcement.enabled }}
{{- include "admitkit.rules" (list . "audit-enforcement" "role") }}
{{- end }}
{{- if or $audit.touchedPods.mark $audit.touchedPods.evictAfter }}
{{- include "admitkit.rules" (list . "audit-mark" "role") }}
{{- end }}
{{- end -}}

{{/*
What runs controllers from hooks. The rights on what hooks are about come from others: whoever writes a controller adds a ClusterRole
with the label.
*/}}
{{- define "admitkit.hooksRoles" -}}
{{- $in := dict "root" . "process" "reconciler." -}}
{{- $name := printf "%s-hooks" (include "admitkit.fullname" .) -}}
{{- $cluster := printf "%s-hooks" (include "admitkit.clusterName" .) -}}
{{- $role := dict "root" . "hook" "" "namespace" "" "account" (include "admitkit.accountName" (dict "root" . "component" "hooks")) -}}
{{- $lease := printf "%s.%s" $name .Release.Namespace -}}
{{- if .Values.leaderElection }}
{{- include "admitkit.role" (merge (dict "name" $name "namespace" .Release.Namespace "rules" (include "admitkit.electionRules" $lease)) $role) }}
{{- end }}
{{- include "admitkit.role" (merge (dict "name" $cluster "rules" (include "admitkit.rules" (list $in "hooks" "clusterrole"))) $role) }}
{{- include "admitkit.role" (merge (dict "name" (printf "%s-aggregate" $cluster) "aggregate" "admitkit.dev/aggregate-to-hooks") $role) }}
{{- range .Values.hooks.namespaces }}
{{- include "admitkit.role" (merge (dict "name" (printf "%s-references" $name) "namespace" . "rules" (include "admitkit.rules" (list $in "hooks" "role"))) $role) }}
{{- end }}
{{- if and .Values.metrics.enabled .Values.metrics.secure }}
{{- include "admitkit.role" (merge (dict "name" (printf "%s-metrics" $cluster) "rules" (include "admitkit.metricsRules" .)) $role) }}
{{- end }}
{{- end -}}

{{/* What serves secure metrics, everywhere. */}}
{{- define "admitkit.metricsRules" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end -}}

{{/* What `helm test` runs: in its namespace ... */}}
{{- define "admitkit.testRules" -}}
- apiGroups: [""]
  resources: [configmaps] # a dry run: none is made
  verbs: [create]
{{- end -}}

{{/* ... and in the cluster. */}}
{{- define "admitkit.testClusterRules" -}}
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
  resourceNames: [{{ include "admitkit.configuration" . }}]
  verbs: [get]
{{- include "admitkit.conversionRules" (list . "get") }}
{{- end -}}

{{/* The hook of the uninstall: it stops the programs, and removes what they made, in their namespace ... */}}
{{- define "admitkit.unregisterRules" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "admitkit.caSecret" . }}, {{ include "admitkit.leafSecret" . }}, {{ include "admitkit.pathsSecret" . }}]
  verbs: [delete]
- apiGroups: [apps]
  resources: [deployments]
  resourceNames: {{ include "admitkit.deployments" . | splitList "," | toJson }}
  verbs: [get]
- apiGroups: [apps]
  resources: [deployments/scale]
  resourceNames: {{ include "admitkit.deployments" . | splitList "," | toJson }}
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "admitkit.configuration" . }}]
  verbs: [delete]
{{- end -}}

{{/* ... everywhere ... */}}
{{- define "admitkit.unregisterClusterRules" -}}
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
  resourceNames: [{{ include "admitkit.configuration" . }}]
  verbs: [get, delete]
{{- include "admitkit.conversionRules" (list . "get, patch") }}
{{- if and .Values.sessions.enabled .Values.sessions.api.enabled }}
- apiGroups: [apiregistration.k8s.io]
  resources: [apiservices]
  resourceNames: [v1alpha1.sessions.admitkit.dev]
  verbs: [get, delete]
{{- end }}
{{- with concat (include "admitkit.placesOfAccess" . | fromJsonArray) (include "admitkit.placesOfBinding" . | fromJson | keys) | compact | uniq | sortAlpha }}
{{- /* Each may be gone, and with it all access and the rights in it. */}}
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: {{ toJson . }}
  verbs: [get]
{{- end }}
{{- if .Values.binding.clusterWide }}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterrolebindings]
  verbs: [list, patch, delete]
{{- end }}
{{- with .Values.rbac.extraClusterRules }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* ... and where access is granted: all of it ends. */}}
{{- define "admitkit.unregisterAccessRules" -}}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [list, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles]
  verbs: [get, list, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, delete]
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
{{- if include "admitkit.holdsEgress" . }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, delete]
{{- if .Values.access.egress.cilium }}
- apiGroups: [cilium.io]
  resources: [ciliumnetworkpolicies]
  verbs: [get, list, delete]
{{- end }}
{{- end }}
- apiGroups: [admitkit.dev]
  resources: [podaccessrequests, execaccessrequests, roleaccessrequests]
  verbs: [list]
- apiGroups: [admitkit.dev]
  resources: [podaccessrequests/status, execaccessrequests/status, roleaccessrequests/status]
  verbs: [patch]
{{- end -}}

{{/* ... and where roles are bound for a while: all these bindings end. By namespace, as JSON of YAML. */}}
{{- define "admitkit.unregisterBindingRules" -}}
{{- $rules := dict -}}
{{- range $namespace := include "admitkit.placesOfBinding" . | fromJson | keys -}}
{{- $_ := set $rules $namespace "- {apiGroups: [rbac.authorization.k8s.io], resources: [rolebindings], verbs: [list, patch, delete]}" -}}
{{- end -}}
{{- $rules | toJson -}}
{{- end -}}
