{{/* Names and labels. */}}

{{/* Name of the server's Deployment and its Service; those of the rest begin with it. Short enough for all of them. */}}
{{- define "admitkit.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- $name = .Values.fullnameOverride -}}
{{- else if not (contains $name .Release.Name) -}}
{{- $name = printf "%s-%s" .Release.Name $name -}}
{{- else -}}
{{- $name = .Release.Name -}}
{{- end -}}
{{- $name = $name | trunc 50 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "%q is no name for a Service: set fullnameOverride to a name of lower case letters, digits and dashes that begins with a letter" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Labels of an object. Takes the root, or a dict of root and labels of its own; neither can replace what selectors go by. */}}
{{- define "admitkit.labels" -}}
{{- $root := .root | default . -}}
{{- $own := include "admitkit.selector" $root | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "admitkit" -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- with .component }}{{ $_ := set $own "app.kubernetes.io/component" . }}{{ end -}}
{{- toYaml (merge $own (.labels | default dict) $root.Values.commonLabels) -}}
{{- end -}}

{{- define "admitkit.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* What selects the Pods of a component. Takes root and component. */}}
{{- define "admitkit.componentSelector" -}}
{{ include "admitkit.selector" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* An image. Takes root and image: repository, tag and digest. */}}
{{- define "admitkit.image" -}}
{{- with .image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.root.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* There is something besides hooks: one of the extensions, or a program of your own. */}}
{{- define "admitkit.operates" -}}
{{- with .Values -}}
{{- if or .audit.enabled .access.enabled .sessions.enabled (include "admitkit.binds" $) (ne .image.repository "ghcr.io/admitkit/admitkit") }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* The manager's objects are named after the release, so that several releases do not meet. */}}
{{- define "admitkit.configuration" -}}
{{ include "admitkit.fullname" . }}.{{ .Release.Namespace }}
{{- end -}}

{{- define "admitkit.caSecret" -}}
{{ include "admitkit.fullname" . }}-setupcertificate
{{- end -}}

{{- define "admitkit.leafSecret" -}}
{{ include "admitkit.fullname" . }}-certificate
{{- end -}}

{{- define "admitkit.pathsSecret" -}}
{{ include "admitkit.fullname" . }}-paths
{{- end -}}

{{/* The Secrets that what registers makes, as JSON. */}}
{{- define "admitkit.ownSecrets" -}}
{{- $own := list (include "admitkit.caSecret" .) -}}
{{- if include "admitkit.registrarStays" . -}}
{{- $own = append $own (include "admitkit.leafSecret" .) -}}
{{- end -}}
{{- append $own (include "admitkit.pathsSecret" .) | toJson -}}
{{- end -}}

{{/* The ServiceAccount of a component: server, registrar, reconciler, scanner or hooks. But for the last two, one process has that of the server. Takes root and component. */}}
{{- define "admitkit.accountName" -}}
{{- $own := .root.Values.serviceAccount -}}
{{- $name := include "admitkit.fullname" .root -}}
{{- if and (eq .component "registrar") (include "admitkit.isSplit" .root) -}}
{{- $own.registrarName | default (printf "%s-registrar" $name) -}}
{{- else if and (eq .component "reconciler") (include "admitkit.reconcilesApart" .root) -}}
{{- $own.reconcilerName | default (printf "%s-reconciler" $name) -}}
{{- else if eq .component "scanner" -}}
{{- $own.scannerName | default (printf "%s-scanner" $name) -}}
{{- else if eq .component "hooks" -}}
{{- $own.hooksName | default (printf "%s-hooks" $name) -}}
{{- else -}}
{{- $own.name | default $name -}}
{{- end -}}
{{- end -}}

{{/* The user as which the reconciler runs apart. */}}
{{- define "admitkit.reconcilerUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "admitkit.accountName" (dict "root" . "component" "reconciler") }}
{{- end -}}

{{/* What registers is a process of its own. Without webhooks there is none. */}}
{{- define "admitkit.isSplit" -}}
{{- if and .Values.split.enabled (include "admitkit.operates" .) }}yes{{ end -}}
{{- end -}}

{{/* A NetworkPolicy is asked for, or the API servers are known. */}}
{{- define "admitkit.hasNetworkPolicy" -}}
{{- with .Values.networkPolicy }}{{ if ternary .apiServers .enabled (kindIs "invalid" .enabled) }}yes{{ end }}{{ end -}}
{{- end -}}

{{/* The registrar is a Deployment of its own. */}}
{{- define "admitkit.registrarStays" -}}
{{- if and (include "admitkit.isSplit" .) (eq .Values.split.registrar "Deployment") }}yes{{ end -}}
{{- end -}}

{{/* The registrar is a Job. */}}
{{- define "admitkit.registrarIsJob" -}}
{{- if and (include "admitkit.isSplit" .) (eq .Values.split.registrar "Job") }}yes{{ end -}}
{{- end -}}

{{/* The extensions have reconcilers; of a program of your own we do not know. */}}
{{- define "admitkit.haveReconcilers" -}}
{{- with .Values -}}
{{- if or .access.enabled (include "admitkit.binds" $) (and .audit.enabled (or .audit.objects.enabled .audit.touchedPods.evictAfter)) }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* There is, or may be, something to reconcile. */}}
{{- define "admitkit.reconciles" -}}
{{- with .Values -}}
{{- $unknown := and (not .audit.enabled) (not .sessions.enabled) (not (and .split.enabled (eq .split.reconciler "None"))) -}}
{{- if and (include "admitkit.operates" $) (or (include "admitkit.haveReconcilers" $) $unknown) }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* What reconciles is a Deployment of its own. */}}
{{- define "admitkit.reconcilesApart" -}}
{{- if and (include "admitkit.isSplit" .) (include "admitkit.reconciles" .) }}yes{{ end -}}
{{- end -}}

{{/* Whether the objects of the cluster are scanned. */}}
{{- define "admitkit.scans" -}}
{{- if and .Values.scan.every (include "admitkit.operates" .) }}yes{{ end -}}
{{- end -}}

{{/* The names of the Deployments. */}}
{{- define "admitkit.deployments" -}}
{{- $name := include "admitkit.fullname" . -}}
{{- $all := list -}}
{{- if include "admitkit.operates" . }}{{ $all = append $all $name }}{{ end -}}
{{- if include "admitkit.registrarStays" . }}{{ $all = append $all (printf "%s-registrar" $name) }}{{ end -}}
{{- if include "admitkit.reconcilesApart" . }}{{ $all = append $all (printf "%s-reconciler" $name) }}{{ end -}}
{{- if include "admitkit.scans" . }}{{ $all = append $all (printf "%s-scanner" $name) }}{{ end -}}
{{- if .Values.hooks.enabled }}{{ $all = append $all (printf "%s-hooks" $name) }}{{ end -}}
{{- join "," $all -}}
{{- end -}}

{{/* The namespaces in which access is granted, as JSON; "" stands for all. */}}
{{- define "admitkit.placesOfAccess" -}}
{{- with .Values -}}
{{- if not .access.enabled -}}
[]
{{- else if has "*" .access.namespaces -}}
[""]
{{- else -}}
{{ .access.namespaces | default .watchNamespaces | toJson }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Some role may be bound. */}}
{{- define "admitkit.binds" -}}
{{- with .Values.binding -}}
{{- if or .roles .clusterRoles .clusterWide }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* What may be bound, by namespace, as JSON: {NAMESPACE: {roles: [...], clusterRoles: [...]}}. */}}
{{- define "admitkit.placesOfBinding" -}}
{{- $places := dict -}}
{{- with .Values.binding -}}
{{- range .roles -}}
{{- $role := splitn "/" 2 . -}}
{{- $in := get $places $role._0 | default dict -}}
{{- $_ := set $in "roles" (append (get $in "roles" | default list) $role._1) -}}
{{- $_ := set $places $role._0 $in -}}
{{- end -}}
{{- if .clusterRoles -}}
{{- range .namespaces | default $.Values.watchNamespaces -}}
{{- $in := get $places . | default dict -}}
{{- $_ := set $in "clusterRoles" $.Values.binding.clusterRoles -}}
{{- $_ := set $places . $in -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $places | toJson -}}
{{- end -}}
