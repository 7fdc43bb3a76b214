{{/* The rules of the roles. They are those that `admitkit manifests` prints: a test compares them. */}}

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

{{/* The extensions, where they watch. */}}
{{- define "admitkit.extensionRules" -}}
{{- with .Values }}
{{- if and .audit.enabled (not .audit.allNamespaces) }}
{{- include "admitkit.auditRules" . }}
{{- end }}
{{- if and .audit.enabled .audit.touchedPods.evictAfter }}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
{{- if .access.enabled }}
{{- include "admitkit.accessRules" . }}
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
{{- include "admitkit.auditRules" . }}
{{- end }}
{{- if and .audit.enabled .audit.objects.enabled }}
- apiGroups: [admitkit.dev]
  resources: [auditevents]
  verbs: [create, get, list, watch, delete]
- apiGroups: [admitkit.dev]
  resources: [auditevents/status]
  verbs: [patch]
{{- end }}
{{- if and .audit.enabled .audit.enforcement.enabled }}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- end }}
{{- with .rbac.extraClusterRules }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "admitkit.auditRules" }}
- apiGroups: [""]
  resources: [pods]
  verbs: [get]
{{- if .audit.event.enabled }}
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}
{{- if .access.enabled }}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles]
  verbs: [list]
- apiGroups: [admitkit.dev]
  resources: [podaccessrequests, execaccessrequests]
  verbs: [get]
{{- end }}
{{- if .audit.enforcement.enabled }}
- apiGroups: [admitkit.dev]
  resources: [podaccessrequests, execaccessrequests, execaccesstemplates]
  verbs: [list]
- apiGroups: [admitkit.dev]
  resources: [podaccessrequests/status, execaccessrequests/status]
  verbs: [patch]
{{- end }}
{{- if or .audit.touchedPods.mark .audit.touchedPods.evictAfter }}
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
{{- end }}
{{- end -}}

{{- define "admitkit.accessRules" }}
- apiGroups: [admitkit.dev]
  resources: [podaccesstemplates, execaccesstemplates, podaccessrequests, execaccessrequests]
  verbs: [get, list, watch]
- apiGroups: [admitkit.dev]
  resources: [podaccesstemplates/status, execaccesstemplates/status, podaccessrequests/status, execaccessrequests/status]
  verbs: [patch]
- apiGroups: [admitkit.dev]
  resources: [podaccessrequests, execaccessrequests]
  verbs: [delete]
# The targets of templates.
- apiGroups: [apps]
  resources: [deployments, daemonsets, statefulsets, replicasets]
  verbs: [get, list, watch]
- apiGroups: [batch]
  resources: [jobs, cronjobs]
  verbs: [get, list, watch]
- apiGroups: [argoproj.io]
  resources: [rollouts]
  verbs: [get, list, watch]
# Access Pods, grants, the end of sessions.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# What templates can grant: nobody can grant what they do not hold themselves.
- apiGroups: [""]
  resources: [pods/exec, pods/attach, pods/portforward]
  verbs: [create, get]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [pods/ephemeralcontainers]
  verbs: [get, patch, update]
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
