{{/* The rules of the roles. Those of extensions are files that make generate writes. The others depend on names that only
     the release knows, so they are written here; a test compares all of them with what `admitkit manifests` prints. */}}

{{/* A Role with its binding, or without a namespace a ClusterRole. Takes root, name, namespace, account, rules and hook. */}}
{{- define "admitkit.role" -}}
{{- if .rules }}
{{- $kind := ternary "Role" "ClusterRole" (ne .namespace "") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  {{- include "admitkit.roleMeta" . | nindent 2 }}
rules:
{{ trim .rules }}
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
  resourceNames:
  - {{ include "admitkit.caSecret" . }}
  {{- if include "admitkit.registrarStays" . }}
  - {{ include "admitkit.leafSecret" . }}
  {{- end }}
  verbs: [get, watch, update, delete]
{{- end -}}

{{/* ... and in the cluster. */}}
{{- define "admitkit.registrarClusterRules" -}}
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
  resourceNames: [{{ include "admitkit.configuration" . }}]
  verbs: [get, list, watch, create, patch, update, delete]
{{- end -}}

{{/* What serves, in its namespace. */}}
{{- define "admitkit.serverRules" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ ternary (include "admitkit.leafSecret" .) (include "admitkit.caSecret" .) (ne (include "admitkit.registrarStays" .) "") }}]
  verbs: [get, watch]
{{- if include "admitkit.elects" . }}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "admitkit.configuration" . }}]
  verbs: [get, update]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
{{- end -}}

{{/* There is something that runs in one replica at a time; of a program of your own we do not know. */}}
{{- define "admitkit.elects" -}}
{{- with .Values -}}
{{- if and .leaderElection (or .access.enabled (not .audit.enabled) .audit.objects.enabled .audit.touchedPods.evictAfter) }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* The rules of a feature of an extension. Takes root, the feature, and "role" or "clusterrole". make generate writes the files. */}}
{{- define "admitkit.rules" }}
{{- with index . 0 }}
{{ .Files.Get (printf "files/rules/%s.%s.yaml" (index $ 1) (index $ 2)) | trimPrefix "# Written by make generate from what the extensions say that they need." | trim }}
{{- end }}
{{- end -}}

{{/* The extensions, where they watch. */}}
{{- define "admitkit.extensionRules" -}}
{{- with .Values }}
{{- if and .audit.enabled (not .audit.allNamespaces) }}
{{- include "admitkit.auditRules" $ }}
{{- end }}
{{- if and .audit.enabled .audit.touchedPods.evictAfter }}
{{- include "admitkit.rules" (list $ "audit-evict" "role") }}
{{- end }}
{{- if .access.enabled }}
{{- include "admitkit.rules" (list $ "access" "role") }}
{{- end }}
{{- with .rbac.extraRules }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The extensions, everywhere. */}}
{{- define "admitkit.extensionClusterRules" -}}
{{- with .Values }}
{{- if and .audit.enabled .audit.allNamespaces }}
{{- include "admitkit.auditRules" $ }}
{{- end }}
{{- if and .audit.enabled .audit.objects.enabled }}
{{- include "admitkit.rules" (list $ "audit-objects" "clusterrole") }}
{{- end }}
{{- if and .audit.enabled .audit.enforcement.enabled }}
{{- include "admitkit.rules" (list $ "audit-enforcement" "clusterrole") }}
{{- end }}
{{- with .rbac.extraClusterRules }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What audit needs where it records. */}}
{{- define "admitkit.auditRules" }}
{{- include "admitkit.rules" (list . "audit" "role") }}
{{- if .Values.audit.event.enabled }}
{{- include "admitkit.rules" (list . "audit-event" "role") }}
{{- end }}
{{- if .Values.access.enabled }}
{{- include "admitkit.rules" (list . "audit-access" "role") }}
{{- end }}
{{- if .Values.audit.enforcement.enabled }}
{{- include "admitkit.rules" (list . "audit-enforcement" "role") }}
{{- end }}
{{- if or .Values.audit.touchedPods.mark .Values.audit.touchedPods.evictAfter }}
{{- include "admitkit.rules" (list . "audit-mark" "role") }}
{{- end }}
{{- end -}}

{{/* The hook of the uninstall: it stops the programs, and removes what they made, in their namespace ... */}}
{{- define "admitkit.unregisterRules" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "admitkit.caSecret" . }}, {{ include "admitkit.leafSecret" . }}]
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
{{- if and .Values.watchNamespace .Values.access.enabled }}
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: [{{ .Values.watchNamespace | quote }}] # it may be gone, and with it all access and the rights in it
  verbs: [get]
{{- end }}
{{- with .Values.rbac.extraClusterRules }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* ... and where the extensions work: all access ends. */}}
{{- define "admitkit.unregisterExtensionRules" -}}
{{- with .Values.rbac.extraRules }}
{{ toYaml . }}
{{- end }}
{{- if .Values.access.enabled }}
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
- apiGroups: [admitkit.dev]
  resources: [podaccessrequests, execaccessrequests]
  verbs: [list]
- apiGroups: [admitkit.dev]
  resources: [podaccessrequests/status, execaccessrequests/status]
  verbs: [patch]
{{- end }}
{{- end -}}

{{- define "admitkit.deployments" -}}
{{ include "admitkit.fullname" . }}{{ if include "admitkit.registrarStays" . }},{{ include "admitkit.fullname" . }}-registrar{{ end }}
{{- end -}}
