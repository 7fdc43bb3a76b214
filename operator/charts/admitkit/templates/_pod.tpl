{{/* A ServiceAccount that stays, unless it exists already. Takes root, component and account, and annotations of its own. */}}
{{- define "admitkit.ownAccount" -}}
{{- if .root.Values.serviceAccount.create }}
---
{{ include "admitkit.account" (merge (dict "name" .account) .) }}
{{- end }}
{{- end -}}

{{/* A ServiceAccount. Takes root, component, name, and annotations of its own. */}}
{{- define "admitkit.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "admitkit.labels" (dict "root" .root "component" .component) | nindent 4 }}
  {{- with merge (.annotations | default dict) .root.Values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* A budget that keeps one of several replicas. Takes root, component and name. */}}
{{- define "admitkit.budget" -}}
{{- if and .root.Values.podDisruptionBudget.enabled (gt (int .root.Values.replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "admitkit.labels" (dict "root" .root "component" .component) | nindent 4 }}
spec:
  maxUnavailable: 1
  # Replicas that are not ready must not hold up the drain of their nodes: they serve nobody.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "admitkit.componentSelector" . | nindent 6 }}
{{- end }}
{{- end -}}

{{/* What runs `reconcile`, or other args, of whose replicas one works. Takes root and component, and with args has one replica. */}}
{{- define "admitkit.elected" -}}
{{- $account := include "admitkit.accountName" . -}}
{{- $user := printf "--reconciler-user=system:serviceaccount:%s:%s" .root.Release.Namespace $account -}}
{{- $of := merge (dict "name" (printf "%s-%s" (include "admitkit.fullname" .root) .component) "account" $account "args" (.args | default (list "reconcile" $user))) . -}}
{{- $elects := and .root.Values.leaderElection (not .args) -}}
{{- include "admitkit.ownAccount" $of }}
{{- if $elects }}
{{- include "admitkit.budget" $of }}
{{- end }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $of.name | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "admitkit.labels" (dict "root" .root "component" .component) | nindent 4 }}
spec:
  {{- if $elects }}
  replicas: {{ .root.Values.replicas }}
  {{- else }}
  replicas: 1
  # Two at a time would do everything twice.
  strategy:
    type: Recreate
  {{- end }}
  selector:
    matchLabels:
      {{- include "admitkit.componentSelector" $of | nindent 6 }}
  template:
    {{- include "admitkit.pod" $of | nindent 4 }}
{{- end -}}

{{/*
The Pods. All but those of hooks run one program with the same flags, and all fulfil the restricted Pod Security standard
(https://kubernetes.io/docs/concepts/security/pod-security-standards/).
Takes root, component, account and args: the subcommand and flags of its own.
*/}}
{{- define "admitkit.pod" -}}
{{- $values := .root.Values -}}
{{- $serves := eq .component "server" -}}
{{- $hooks := eq .component "hooks" -}}
{{- $records := or $serves (eq .component "reconciler") -}}
{{- $grants := or (eq .component "reconciler") (and $serves (not $values.split.enabled)) -}}
{{- $checks := or $records (eq .component "scanner") -}}
{{- $stays := or $checks $hooks (eq .component "registrar") -}}
{{- $volumes := dict "values" $values "records" $records "checks" $checks "serves" $serves "grants" $grants "hooks" $hooks -}}
metadata:
  labels:
    {{- include "admitkit.labels" (dict "root" .root "component" .component "labels" $values.podLabels) | nindent 4 }}
  {{- with $values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ .account | quote }}
  # The variables of a Service named admitkit look like flags.
  enableServiceLinks: false
  # Longer than a stop takes: a server then waits 35 s for the requests that it has.
  terminationGracePeriodSeconds: {{ add $values.drainPeriodSeconds 40 }}
  {{- if has .component (list "register" "unregister" "test") }}
  restartPolicy: Never
  {{- end }}
  {{- $context := deepCopy $values.podSecurityContext }}
  {{- if and (include "admitkit.volumes" $volumes) (not (hasKey $context "fsGroup")) }}
  {{- /* That of the image, which is to write to the volumes. */}}
  {{- $_ := set $context "fsGroup" 65532 }}
  {{- end }}
  {{- with include "admitkit.withoutNull" $context | fromYaml }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- $host := and $serves $values.hostNetwork }}
  {{- if $host }}
  hostNetwork: true
  {{- end }}
  {{- with $values.dnsPolicy | default (ternary "ClusterFirstWithHostNet" "" $host) }}
  dnsPolicy: {{ . }}
  {{- end }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if or $records $hooks }}
  topologySpreadConstraints:
  {{- $alike := dict "matchLabels" (include "admitkit.componentSelector" . | fromYaml) }}
  {{- $host := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" }}
  {{- range prepend $values.topologySpreadConstraints $host }}
  - {{- toYaml (merge . (dict "labelSelector" $alike)) | nindent 4 }}
  {{- end }}
  {{- end }}
  containers:
  - name: {{ ternary "hooks" "admitkit" $hooks }}
    image: {{ include "admitkit.image" (dict "root" .root "image" (ternary $values.hooks.image $values.image $hooks)) | quote }}
    imagePullPolicy: {{ $values.image.pullPolicy }}
    args:
    {{- toYaml .args | nindent 4 }}
    {{- include (ternary "admitkit.hooksArgs" "admitkit.args" $hooks) .root | nindent 4 }}
    {{- with and $serves (include "admitkit.tlsArgs" .root) }}
    {{- . | nindent 4 }}
    {{- end }}
    env:
    - name: POD_NAME
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
    {{- if not $hooks }}
    {{- include "admitkit.env" .root | nindent 4 }}
    {{- end }}
    {{- if and $records $values.audit.enabled $values.audit.cloudEvents.url }}
    {{- with include "admitkit.credentialsEnv" (dict "prefix" "ADMITKIT_AUDIT_CLOUDEVENTS" "folder" "/cloudevents" "of" $values.audit.cloudEvents) | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- if and $grants $values.access.enabled $values.access.notify.url }}
    {{- with include "admitkit.credentialsEnv" (dict "prefix" "ADMITKIT_ACCESS_NOTIFY" "folder" "/access-notify" "of" $values.access.notify) | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- if and $checks $values.access.enabled $values.access.checks.secretName }}
    - {name: ADMITKIT_ACCESS_CHECKS, value: {{ printf "/access-checks/%s" $values.access.checks.key | quote }}}
    {{- end }}
    {{- if and $serves $values.sessions.enabled }}
    {{- with $values.sessions.s3.secret }}
    {{- range $name := list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
    - {name: {{ $name }}, valueFrom: {secretKeyRef: {name: {{ $values.sessions.s3.secret | quote }}, key: {{ $name }}}}}
    {{- end }}
    {{- end }}
    {{- end }}
    {{- with ternary $values.hooks.extraEnv $values.extraEnv $hooks }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if $stays }}
    ports:
    {{- if $serves }}
    - name: webhook
      containerPort: {{ $values.port }}
    {{- end }}
    {{- if $values.metrics.enabled }}
    - name: metrics
      containerPort: {{ $values.metrics.port }}
    {{- end }}
    - name: health
      containerPort: {{ $values.healthPort }}
    {{- if and $serves $values.sessions.enabled }}
    - name: sessions
      containerPort: {{ $values.sessions.port }}
    {{- end }}
    livenessProbe:
      httpGet:
        path: /healthz
        port: health
    readinessProbe:
      httpGet:
        path: /readyz
        port: health
      periodSeconds: 2
    {{- end }}
    {{- with ternary $values.hooks.resources $values.resources $hooks }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with include "admitkit.withoutNull" $values.securityContext | fromYaml }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with include "admitkit.volumeMounts" $volumes }}
    volumeMounts:
    {{- . | nindent 4 }}
    {{- end }}
  {{- with include "admitkit.volumes" $volumes }}
  volumes:
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* A map without the fields that are null: each is unset, for the platform to choose it. */}}
{{- define "admitkit.withoutNull" -}}
{{- $set := dict -}}
{{- range $field, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $set $field $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $set -}}
{{- end -}}

{{/* Servers and reconcilers alone write records: the other Pods get no volume of theirs, nor the token. */}}
{{- define "admitkit.volumeMounts" -}}
{{- $audit := .values.audit -}}
{{- if and .records $audit.enabled }}
{{- if $audit.file.enabled }}
- {name: audit, mountPath: /audit}
{{- end }}
{{- if and $audit.cloudEvents.url $audit.cloudEvents.queue.enabled }}
- {name: queue, mountPath: /queue}
{{- end }}
{{- if and $audit.cloudEvents.url (include "admitkit.credentials" $audit.cloudEvents) }}
- {name: cloudevents, mountPath: /cloudevents, readOnly: true}
{{- end }}
{{- if and $audit.otlp.endpoint $audit.otlp.queue.enabled }}
- {name: otlp-queue, mountPath: /otlp-queue}
{{- end }}
{{- if and $audit.otlp.endpoint (include "admitkit.credentials" $audit.otlp) }}
- {name: otlp, mountPath: /otlp, readOnly: true}
{{- end }}
{{- end }}
{{- with .values.access.notify }}
{{- if and $.grants $.values.access.enabled .url .queue.enabled }}
- {name: access-queue, mountPath: /access-queue}
{{- end }}
{{- if and $.grants $.values.access.enabled .url (include "admitkit.credentials" .) }}
- {name: access-notify, mountPath: /access-notify, readOnly: true}
{{- end }}
{{- end }}
{{- if and .checks .values.access.enabled .values.access.checks.secretName }}
- {name: access-checks, mountPath: /access-checks, readOnly: true}
{{- end }}
{{- if and .serves .values.tracing.endpoint (include "admitkit.credentials" .values.tracing) }}
- {name: traces, mountPath: /traces, readOnly: true}
{{- end }}
{{- if and .serves .values.sessions.enabled }}
- {name: session-key, mountPath: /session-key, readOnly: true}
{{- if not .values.sessions.s3.endpoint }}
- {name: sessions, mountPath: /sessions}
{{- end }}
{{- end }}
{{- if and .serves .values.tls.clientCA.configMap }}
- {name: clients, mountPath: /clients, readOnly: true}
{{- end }}
{{- with ternary list .values.extraVolumeMounts .hooks }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The files of the credentials for an endpoint. */}}
{{- define "admitkit.credentials" -}}
{{- with .tokenSecret }}
{{- if .name }}
- secret: {name: {{ .name | quote }}, items: [{key: {{ .key | quote }}, path: token}]}
{{- end }}
{{- end }}
{{- with .caSecret }}
{{- if .name }}
- secret: {name: {{ .name | quote }}, items: [{key: {{ .key | quote }}, path: ca.crt}]}
{{- end }}
{{- end }}
{{- with .tlsSecret }}
{{- if .name }}
- secret: {name: {{ .name | quote }}, items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]}
{{- end }}
{{- end }}
{{- end -}}

{{- define "admitkit.volumes" -}}
{{- $audit := .values.audit -}}
{{- if and .records $audit.enabled }}
{{- if $audit.file.enabled }}
- name: audit
  {{- toYaml ($audit.file.volume | default (dict "emptyDir" dict)) | nindent 2 }}
{{- end }}
{{- if and $audit.cloudEvents.url $audit.cloudEvents.queue.enabled }}
- name: queue
  {{- toYaml ($audit.cloudEvents.queue.volume | default (dict "emptyDir" dict)) | nindent 2 }}
{{- end }}
{{- if $audit.cloudEvents.url }}
{{- with include "admitkit.credentials" $audit.cloudEvents }}
- name: cloudevents
  projected:
    sources:
    {{- . | nindent 4 }}
{{- end }}
{{- end }}
{{- if and $audit.otlp.endpoint $audit.otlp.queue.enabled }}
- name: otlp-queue
  {{- toYaml ($audit.otlp.queue.volume | default (dict "emptyDir" dict)) | nindent 2 }}
{{- end }}
{{- if $audit.otlp.endpoint }}
{{- with include "admitkit.credentials" $audit.otlp }}
- name: otlp
  projected:
    sources:
    {{- . | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}
{{- with .values.access.notify }}
{{- if and $.grants $.values.access.enabled .url .queue.enabled }}
- name: access-queue
  {{- toYaml (.queue.volume | default (dict "emptyDir" dict)) | nindent 2 }}
{{- end }}
{{- if and $.grants $.values.access.enabled .url }}
{{- with include "admitkit.credentials" . }}
- name: access-notify
  projected:
    sources:
    {{- . | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}
{{- with .values.access.checks }}
{{- if and $.checks $.values.access.enabled .secretName }}
- name: access-checks
  secret:
    secretName: {{ .secretName | quote }}
    {{- if not $.grants }}
    {{- /* Who only admits templates needs the names of the checks, and no credential. */}}
    items:
    - key: {{ .key | quote }}
      path: {{ .key | quote }}
    {{- end }}
{{- end }}
{{- end }}
{{- if and .serves .values.tracing.endpoint }}
{{- with include "admitkit.credentials" .values.tracing }}
- name: traces
  projected:
    sources:
    {{- . | nindent 4 }}
{{- end }}
{{- end }}
{{- with .values.sessions }}
{{- if and $.serves .enabled }}
- name: session-key
  secret: {secretName: {{ .keySecret | quote }}}
{{- if not .s3.endpoint }}
- name: sessions
  {{- toYaml (.volume | default (dict "emptyDir" dict)) | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- $clients := .values.tls.clientCA }}
{{- if and .serves $clients.configMap }}
- name: clients
  configMap: {name: {{ $clients.configMap | quote }}, items: [{key: {{ $clients.key | quote }}, path: ca.crt}]}
{{- end }}
{{- with ternary list .values.extraVolumes .hooks }}
{{ toYaml . }}
{{- end }}
{{- end -}}
