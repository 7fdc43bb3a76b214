{{/* The settings of the program: the manager by flags, the extensions by environment variables, which a program of your own ignores. */}}

{{- define "admitkit.args" -}}
- --fingerprint={{ include "admitkit.fullname" . }}
- --service-name={{ include "admitkit.fullname" . }}
- --service-port={{ .Values.service.port }}
- --port={{ .Values.port }}
- --failure-policy={{ .Values.failurePolicy }}
{{ include "admitkit.commonArgs" . }}
{{- if include "admitkit.registrarStays" . }}
- --leaf-secret-name={{ include "admitkit.leafSecret" . }}
{{- end }}
{{- with .Values.watchNamespaces }}
- --namespace={{ join "," . }}
{{- end }}
{{- with .Values.podSelector }}
- {{ printf "--pod-selector=%s" . | quote }}
{{- end }}
{{- if .Values.ignoreUntilProbed }}
- --ignore-until-probed=true
{{- end }}
{{- range $key, $value := .Values.webhookAnnotations }}
- {{ include "admitkit.pair" (list $key $value) | printf "--webhook-annotations=%s" | quote }}
{{- end }}
{{- with .Values.excludeNamespaces }}
- --exclude-namespaces={{ join "," . }}
{{- end }}
{{- with .Values.tolerateSelectorTerms }}
- --tolerate-selector-terms={{ join "," . }}
{{- end }}
{{- include "admitkit.settings" (list . "args") }}
{{- range .Values.extraArgs }}
- {{ quote . }}
{{- end }}
{{- end -}}

{{/* The flags of every program. */}}
{{- define "admitkit.commonArgs" -}}
- --webhook-namespace={{ .Release.Namespace }}
- --drain-period={{ .Values.drainPeriodSeconds }}s
- --leader-election={{ .Values.leaderElection }}
- --zap-log-level={{ .Values.logLevel }}
- --health-address=:{{ .Values.healthPort }}
{{- if and .Values.metrics.enabled .Values.metrics.secure }}
- --metrics-secure=true
{{- end }}
- --metrics-address={{ if .Values.metrics.enabled }}:{{ .Values.metrics.port }}{{ end }}
{{- end -}}

{{/* The flags of hooks. */}}
{{- define "admitkit.hooksArgs" -}}
- --fingerprint={{ include "admitkit.fullname" . }}-hooks
{{ include "admitkit.commonArgs" . }}
{{- with .Values.hooks }}
{{- with .kinds }}
- --hooks-kinds={{ join "," . }}
{{- end }}
{{- with .namespaces }}
- --hooks-namespaces={{ join "," . }}
{{- end }}
{{- with .targetLabelSelector }}
- {{ printf "--hooks-target-label-selector=%s" . | quote }}
{{- end }}
- --hooks-workers={{ int .workers }}
{{- range .extraArgs }}
- {{ quote . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* TLS of the servers. */}}
{{- define "admitkit.tlsArgs" -}}
{{- with .Values.tls.minVersion }}
- --tls-min-version={{ . }}
{{- end }}
{{- with .Values.tls.cipherSuites }}
- --tls-cipher-suites={{ join "," . }}
{{- end }}
{{- with .Values.tls.clientCA }}
{{- if .configMap }}
- --client-ca=/clients/ca.crt
{{- if .names }}
- {{ printf "--client-names=%s" (include "admitkit.csv" .names) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "admitkit.env" -}}
{{- include "admitkit.settings" (list . "env") }}
{{- with .Values.audit }}
{{- if .enabled }}
{{- with include "admitkit.closedSinks" . }}
- {name: ADMITKIT_AUDIT_CLOSED, value: {{ . | quote }}}
{{- end }}
{{- if .file.enabled }}
- {name: ADMITKIT_AUDIT_FILE, value: /audit/$(POD_NAME).jsonl}
{{- end }}
{{- if and .cloudEvents.url .cloudEvents.queue.enabled }}
- {name: ADMITKIT_AUDIT_CLOUDEVENTS_DIR, value: /queue}
{{- end }}
{{- with .otlp }}
{{- if .endpoint }}
{{- include "admitkit.credentialsEnv" (dict "prefix" "ADMITKIT_AUDIT_OTLP" "folder" "/otlp" "of" .) }}
{{- if .queue.enabled }}
- {name: ADMITKIT_AUDIT_OTLP_DIR, value: /otlp-queue}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.sessions }}
{{- if .enabled }}
- {name: ADMITKIT_SESSIONS_IMAGE, value: {{ include "admitkit.image" (dict "root" $ "image" .image) | quote }}}
{{- end }}
{{- end }}
{{- with .Values.tracing }}
{{- if .endpoint }}
{{- include "admitkit.credentialsEnv" (dict "prefix" "ADMITKIT_OTLP_TRACES" "folder" "/traces" "of" .) }}
{{- end }}
{{- end }}
{{- with .Values.access }}
{{- if and .enabled .notify.url .notify.queue.enabled }}
- {name: ADMITKIT_ACCESS_NOTIFY_DIR, value: /access-queue}
{{- end }}
{{- end }}
{{- end -}}

{{/*
The flags of the extensions that the values set to other than their defaults. Takes the root, and env for those that are given as
variables, or args for those that can be given several times. make generate writes the list from the flags.
*/}}
{{- define "admitkit.settings" }}
{{- $root := index . 0 }}
{{- $args := eq (index . 1) "args" }}
{{- range $setting := $root.Files.Get "files/settings.yaml" | fromYamlArray }}
{{- $json := include "admitkit.at" (list $root .value) }}
{{- $set := not (has $json (list (toJson .default) `""` "null")) }}
{{- range .needs }}
{{- if has (include "admitkit.at" (list $root .)) (list "false" `""`) }}
{{- $set = false }}
{{- end }}
{{- end }}
{{- if and $set (eq $args (hasKey . "repeats")) }}
{{- $value := (printf `{"is":%s}` $json | fromJson).is }}
{{- if $args }}
{{- range $value }}
- {{ printf "--%s=%s" $setting.flag . | quote }}
{{- end }}
{{- else }}
{{- if kindIs "slice" $value }}
{{- $value = include "admitkit.csv" $value }}
{{- else if kindIs "map" $value }}
{{- $value = include "admitkit.pairs" $value }}
{{- else if not (kindIs "string" $value) }}
{{- $value = $json }}
{{- end }}
- {name: {{ include "admitkit.variable" .flag }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A value, as JSON. Takes the root and the path. */}}
{{- define "admitkit.at" -}}
{{- $value := (index . 0).Values -}}
{{- range splitList "." (index . 1) -}}
{{- $value = get $value . -}}
{{- end -}}
{{- toJson $value -}}
{{- end -}}

{{/* The variable of a flag. */}}
{{- define "admitkit.variable" -}}
ADMITKIT_{{ . | upper | replace "-" "_" }}
{{- end -}}

{{/* The variables of the credentials for an endpoint. Takes prefix, folder and of. */}}
{{- define "admitkit.credentialsEnv" -}}
{{- if .of.tokenSecret.name }}
- {name: {{ .prefix }}_TOKEN_FILE, value: {{ .folder }}/token}
{{- end }}
{{- if .of.caSecret.name }}
- {name: {{ .prefix }}_CA_FILE, value: {{ .folder }}/ca.crt}
{{- end }}
{{- if .of.tlsSecret.name }}
- {name: {{ .prefix }}_CERT_FILE, value: {{ .folder }}/tls.crt}
- {name: {{ .prefix }}_KEY_FILE, value: {{ .folder }}/tls.key}
{{- end }}
{{- end -}}

{{/* A map as the program reads it from one variable. */}}
{{- define "admitkit.pairs" -}}
{{- $pairs := list -}}
{{- range $key, $value := . -}}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- include "admitkit.csv" $pairs -}}
{{- end -}}

{{/* The sinks that are on and Closed. */}}
{{- define "admitkit.closedSinks" -}}
{{- $closed := list -}}
{{- if and .log.enabled (eq .log.failurePolicy "Closed") }}{{ $closed = append $closed "log" }}{{ end -}}
{{- if and .event.enabled (eq .event.failurePolicy "Closed") }}{{ $closed = append $closed "event" }}{{ end -}}
{{- if and .objects.enabled (eq .objects.failurePolicy "Closed") }}{{ $closed = append $closed "auditevent" }}{{ end -}}
{{- if and .file.enabled (eq .file.failurePolicy "Closed") }}{{ $closed = append $closed "file" }}{{ end -}}
{{- if and .cloudEvents.url (eq .cloudEvents.failurePolicy "Closed") }}{{ $closed = append $closed "cloudevents" }}{{ end -}}
{{- if and .otlp.endpoint (eq .otlp.failurePolicy "Closed") }}{{ $closed = append $closed "otlp" }}{{ end -}}
{{- join "," $closed -}}
{{- end -}}

{{/* A webhook with failure policy Fail covers the creation of Pods in watchNamespaces, as the program would find out (guardOwnPods). */}}
{{- define "admitkit.holdsUpPods" -}}
{{- $closed := and .audit.enabled (not .audit.allNamespaces) (or .audit.required (include "admitkit.closedSinks" .audit)) -}}
{{- $access := and .access.enabled (or (not .access.namespaces) (has "*" .access.namespaces)) -}}
{{- $sessions := and .sessions.enabled (not .sessions.namespaces) (not .sessions.selector) (eq .sessions.unrecorded "Closed") -}}
{{- if or $access $closed $sessions }}yes{{ end -}}
{{- end -}}

{{/* Somebody says that this is in order. */}}
{{- define "admitkit.allowsOwnPods" -}}
{{- include "admitkit.sets" (list . "allow-own-pods") -}}
{{- end -}}

{{/* A flag is set besides those of the chart. Takes the values and the flag. */}}
{{- define "admitkit.sets" -}}
{{- $flag := index . 1 -}}
{{- range (index . 0).extraArgs -}}
{{- if hasPrefix (printf "--%s" $flag) . }}yes{{ end -}}
{{- end -}}
{{- range (index . 0).extraEnv -}}
{{- if eq .name (include "admitkit.variable" $flag) }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* A key and its value as a flag reads them: as CSV, if there is a second =. */}}
{{- define "admitkit.pair" -}}
{{- $pair := printf "%s=%s" (index . 0) (index . 1) -}}
{{- if contains "=" (index . 1) }}{{ $pair = printf "\"%s\"" $pair }}{{ end -}}
{{- $pair -}}
{{- end -}}

{{/* A list as the program reads it from one variable (CSV). */}}
{{- define "admitkit.csv" -}}
{{- $fields := list -}}
{{- range . -}}
{{- $fields = append $fields (printf "\"%s\"" (replace "\"" "\"\"" .)) -}}
{{- end -}}
{{- join "," $fields -}}
{{- end -}}

{{/* What the schema cannot say. */}}
{{- define "admitkit.check" -}}
{{- with .Values -}}
{{- if not (or (include "admitkit.operates" $) .hooks.enabled .sandbox.enabled) -}}
{{- fail "audit.enabled, access.enabled, sessions.enabled, hooks.enabled, sandbox.enabled: all are false; that is for a program of your own in image.repository" -}}
{{- end -}}
{{- if and .audit.enabled .audit.enforcement.enabled (not .access.enabled) -}}
{{- fail "audit.enforcement.enabled: needs access.enabled, since nobody could ask for a session otherwise" -}}
{{- end -}}
{{- if and .audit.enabled (not (or .audit.log.enabled .audit.event.enabled .audit.objects.enabled .audit.file.enabled .audit.cloudEvents.url .audit.otlp.endpoint)) -}}
{{- fail "audit: every sink is off; set audit.log.enabled, event, objects, file, audit.cloudEvents.url or audit.otlp.endpoint, or audit.enabled to false" -}}
{{- end -}}
{{- if and .audit.enabled .audit.log.enabled (eq .logLevel "error") (or .audit.required (eq .audit.log.failurePolicy "Closed")) -}}
{{- fail "logLevel: error leaves out what audit.log records, and Closed it would refuse every session; set logLevel to info, or audit.log.enabled to false" -}}
{{- end -}}
{{- with .access.egress -}}
{{- if and (not .networkPolicy) (or .cilium .podCIDRs .serviceCIDRs) -}}
{{- fail "access.egress: cilium, podCIDRs and serviceCIDRs have no effect without networkPolicy" -}}
{{- end -}}
{{- end -}}
{{- include "admitkit.checkPlaces" $ -}}
{{- include "admitkit.checkBinding" $ -}}
{{- include "admitkit.checkSessions" $ -}}
{{- include "admitkit.checkHooks" $ -}}
{{- include "admitkit.checkScan" $ -}}
{{- include "admitkit.checkSandbox" $ -}}
{{- if and (eq .split.reconciler "None") (include "admitkit.haveReconcilers" $) -}}
{{- fail "split.reconciler: None is for a program of your own that has nothing to reconcile; access, binding, audit.objects and audit.touchedPods.evictAfter need Deployment" -}}
{{- end -}}
{{- if and .ignoreUntilProbed .split.enabled (eq .split.registrar "Job") -}}
{{- fail "ignoreUntilProbed: needs a registrar that stays; with split.registrar Job it would be Ignore for good" -}}
{{- end -}}
{{- if and (not .metrics.enabled) (or .metrics.serviceMonitor.enabled .metrics.podMonitor.enabled .metrics.prometheusRule.enabled .metrics.dashboards.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled, podMonitor, prometheusRule, dashboards: need metrics.enabled" -}}
{{- end -}}
{{- if and .metrics.secure .metrics.podMonitor.enabled (not .metrics.authorization) -}}
{{- fail "metrics.podMonitor.enabled: with metrics.secure it needs metrics.authorization: a PodMonitor cannot send Prometheus' own token" -}}
{{- end -}}
{{- if and (has $.Release.Namespace .watchNamespaces) (include "admitkit.holdsUpPods" .) (not (include "admitkit.allowsOwnPods" .)) -}}
{{- fail (printf "watchNamespaces: %s is the manager's own namespace. With access.enabled (unless access.namespaces names others), sessions.enabled (unless sessions.namespaces does), audit.required or a Closed sink, a webhook with failure policy Fail covers the Pods in it: once the last server is gone, none could be created. Install the release in another namespace" $.Release.Namespace) -}}
{{- end -}}
{{- include "admitkit.checkPorts" . -}}
{{- include "admitkit.checkAccounts" $ -}}
{{- $key := `[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?` -}}
{{- $value := `([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?` -}}
{{- $term := printf `\s*(!\s*%s|%s(\s*==?\s*%s|\s+(in|notin)\s*\(\s*%s(\s*,\s*%s)*\s*\))?)\s*` $key $key $value $value $value -}}
{{- if not (regexMatch (printf "^(%s(,%s)*)?$" $term $term) .podSelector) -}}
{{- fail (printf "podSelector: %q is no label selector: it has terms such as app=web, app in (web, api), app notin (web), app and !app, and no !=" .podSelector) -}}
{{- end -}}
{{- include "admitkit.checkTLS" . -}}
{{- include "audit.redact" .audit.redact -}}
{{- include "admitkit.checkEffect" . -}}
{{- include "admitkit.checkCollector" (list "audit.otlp" .audit.otlp) -}}
{{- include "admitkit.checkCollector" (list "tracing" .tracing) -}}
{{- range $name, $namespaces := dict "watchNamespaces" .watchNamespaces "access.namespaces" .access.namespaces "sessions.namespaces" .sessions.namespaces "audit.enforcement.namespaces" .audit.enforcement.namespaces -}}
{{- range $namespaces -}}
{{- if has . $.Values.excludeNamespaces -}}
{{- fail (printf "excludeNamespaces: %s is in %s: remove it from one of them" . $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if has "kubernetes.io/metadata.name" .tolerateSelectorTerms -}}
{{- fail "tolerateSelectorTerms: kubernetes.io/metadata.name would let others exclude any namespace: name those that they may, as kubernetes.io/metadata.name=NAMESPACE" -}}
{{- end -}}
{{- with .audit.touchedPods -}}
{{- if and $.Values.audit.enabled .evictAfter .maxEvictAfter -}}
{{- /* Durations are compared by what they make of a time. */ -}}
{{- $began := toDate "2006" "2000" -}}
{{- if (mustDateModify .maxEvictAfter $began).Before (mustDateModify .evictAfter $began) -}}
{{- fail (printf "audit.touchedPods.maxEvictAfter: %s is less than evictAfter, %s" .maxEvictAfter .evictAfter) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where sessions are recorded, as the program checks it. */}}
{{- define "admitkit.checkSessions" -}}
{{- with .Values.sessions -}}
{{- if .enabled -}}
{{- if and .selector .namespaces -}}
{{- fail "sessions.selector, sessions.namespaces: both say where sessions are recorded; leave one of them out" -}}
{{- end -}}
{{- if not (or .selector .namespaces $.Values.watchNamespaces) -}}
{{- fail "sessions.namespaces: required, because watchNamespaces is empty: name the namespaces in which sessions are recorded, or set sessions.selector. Each new Pod there gets the recorder" -}}
{{- end -}}
{{- if and .s3.endpoint .volume -}}
{{- fail "sessions.s3.endpoint, sessions.volume: both keep the recordings; leave one of them out" -}}
{{- end -}}
{{- if and .s3.endpoint (not .s3.bucket) -}}
{{- fail "sessions.s3.bucket: required with sessions.s3.endpoint: name the bucket of the recordings" -}}
{{- end -}}
{{- if and .api.enabled (not $.Values.audit.enabled) -}}
{{- fail "sessions.api.enabled: needs audit.enabled: else nobody would know who has read a recording" -}}
{{- end -}}
{{- if has $.Release.Namespace .namespaces -}}
{{- fail (printf "sessions.namespaces: %s is the manager's own namespace: no Pod of the manager could begin while it does not run" $.Release.Namespace) -}}
{{- end -}}
{{- range $name := list "port" "healthPort" -}}
{{- if eq (int (get $.Values $name)) (int $.Values.sessions.port) -}}
{{- fail (printf "sessions.port: %d is %s; choose another" (int $.Values.sessions.port) $name) -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.metrics.enabled (eq (int .port) (int $.Values.metrics.port)) -}}
{{- fail (printf "sessions.port: %d is metrics.port; choose another" (int .port)) -}}
{{- end -}}
{{- if eq (int .port) (int $.Values.service.port) -}}
{{- fail (printf "sessions.port: %d is service.port; choose another" (int .port)) -}}
{{- end -}}
{{- if and (gt (int $.Values.replicas) 1) (not .s3.endpoint) (or (not .volume) (hasKey .volume "emptyDir")) -}}
{{- fail "sessions.volume: required with replicas above 1, because all servers must share the recordings: name a claim to which they can write (ReadWriteMany), or a bucket by sessions.s3.endpoint, or set replicas to 1" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* TLS of the servers, as the program checks it. */}}
{{- define "admitkit.checkTLS" -}}
{{- with .tls.cipherSuites -}}
{{- if eq (toString $.tls.minVersion) "1.3" -}}
{{- fail "tls.cipherSuites: TLS 1.3 has no choice of cipher suites: leave them out, or set tls.minVersion to 1.2" -}}
{{- end -}}
{{- $own := not (or (include "admitkit.sets" (list $ "certificate-dir")) (include "admitkit.sets" (list $ "foreign-ca-bundle"))) -}}
{{- if and $own (not (contains "_ECDSA_" (join "," .))) -}}
{{- fail "tls.cipherSuites: none fits the manager's own certificate, which has an ECDSA key: add one of TLS_ECDHE_ECDSA_..." -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* How a collector is reached, as the program checks it. Takes the path of the values, and these. */}}
{{- define "admitkit.checkCollector" -}}
{{- $path := index . 0 -}}
{{- with index . 1 -}}
{{- if .endpoint -}}
{{- $url := urlParse .endpoint -}}
{{- $here := or (has $url.hostname (list "localhost" "::1")) (hasPrefix "127." $url.hostname) -}}
{{- if or $url.query $url.fragment -}}
{{- fail (printf "%s.endpoint: it must have no query; put a credential into %s.tokenSecret" $path $path) -}}
{{- end -}}
{{- if eq $url.scheme "http" -}}
{{- if or .caSecret.name .tlsSecret.name -}}
{{- fail (printf "%s.endpoint: it must be https: %s.caSecret and tlsSecret have no effect by http" $path $path) -}}
{{- end -}}
{{- if not (or $here .insecure) -}}
{{- fail (printf "%s.endpoint: %s must be https, or http on this machine; set %s.insecure to true to send by http all the same, which anybody in between can read" $path .endpoint $path) -}}
{{- end -}}
{{- if and (not $here) (or .tokenSecret.name $url.userinfo) -}}
{{- fail (printf "%s.endpoint: it must be https: by http anybody in between could read the credentials" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whoever sets a value believes that it has an effect. Takes .Values. */}}
{{- define "admitkit.checkEffect" -}}
{{- $secrets := dict "tokenSecret" (dict "name" "" "key" "token") "tlsSecret" (dict "name" "") "caSecret" (dict "name" "" "key" "ca.crt") -}}
{{- $queue := dict "queue" (dict "enabled" false "volume" dict) -}}
{{- $events := merge (dict "source" "") $queue $secrets -}}
{{- include "admitkit.needs" (list "audit.cloudEvents" "url" .audit.cloudEvents (merge (dict "failurePolicy" "Open") $events)) -}}
{{- include "admitkit.needs" (list "audit.otlp" "endpoint" .audit.otlp (merge (dict "failurePolicy" "Open" "insecure" false "resource" dict) $queue $secrets)) -}}
{{- include "admitkit.needs" (list "access.notify" "url" .access.notify $events) -}}
{{- include "admitkit.needs" (list "tracing" "endpoint" .tracing (merge (dict "insecure" false "ratio" 1) $secrets)) -}}
{{- include "admitkit.needs" (list "access.checks" "secretName" .access.checks (dict "key" "checks.yaml")) -}}
{{- include "admitkit.needs" (list "tls.clientCA" "configMap" .tls.clientCA (dict "key" "ca.crt" "names" list)) -}}
{{- include "admitkit.needs" (list "sessions" "enabled" .sessions (dict "namespaces" list "selector" "" "policy" "Closed" "unrecorded" "Closed" "nodeProxy" true "wait" "10s" "input" false "max" "0s" "idle" "0s" "retention" "720h" "evict" false "api" (dict "enabled" false) "volume" dict)) -}}
{{- include "admitkit.needs" (list "sessions.s3" "endpoint" .sessions.s3 (dict "insecure" false "bucket" "" "region" "us-east-1" "prefix" "" "secret" "")) -}}
{{- if and .sessions.s3.endpoint (not .sessions.enabled) -}}
{{- fail "sessions.s3.endpoint: has no effect without sessions.enabled: set that, or leave this out" -}}
{{- end -}}
{{- include "admitkit.needs" (list "metrics" "enabled" .metrics (dict "secure" false)) -}}
{{- include "admitkit.needs" (list "metrics" "secure" .metrics (dict "authorization" dict)) -}}
{{- with .audit.touchedPods -}}
{{- if and (or .evictUnmanaged .maxEvictAfter) (not (or .mark .evictAfter)) -}}
{{- fail "audit.touchedPods.evictUnmanaged, maxEvictAfter: have no effect without audit.touchedPods.evictAfter or mark" -}}
{{- end -}}
{{- end -}}
{{- if not (include "admitkit.binds" (dict "Values" .)) -}}
{{- range $name, $default := dict "maxDuration" "168h" "maxLead" "168h" "retention" "24h" "workers" 16 -}}
{{- if ne (toString (get $.binding $name)) (toString $default) -}}
{{- fail (printf "binding.%s: has no effect without binding.roles, clusterRoles or clusterWide" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Values that have no effect while another is empty. Takes the path of their map, that other's name, the map and their defaults. */}}
{{- define "admitkit.needs" -}}
{{- $path := index . 0 -}}
{{- $needed := index . 1 -}}
{{- $values := index . 2 -}}
{{- if not (get $values $needed) -}}
{{- range $name, $default := index . 3 -}}
{{- if and (hasKey $values $name) (ne (toJson (get $values $name)) (toJson $default)) -}}
{{- fail (printf "%s.%s: has no effect without %s.%s: set that, or leave this out" $path $name $path $needed) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where ClusterRoles may be bound is said, and only where there are any. */}}
{{- define "admitkit.checkBinding" -}}
{{- with .Values.binding -}}
{{- if and .namespaces (not .clusterRoles) -}}
{{- fail "binding.namespaces: they are those in which binding.clusterRoles may be bound, and there are none of these" -}}
{{- end -}}
{{- $closed := list "kube-system" "kube-node-lease" $.Release.Namespace -}}
{{- range concat (splitList "," (include "admitkit.namespacesOf" .roles)) .namespaces -}}
{{- if has . $closed -}}
{{- fail (printf "binding.roles, namespaces: %s is the manager's own namespace, or one of the control plane: who gets a right there could grant themselves anything" .) -}}
{{- end -}}
{{- end -}}
{{- if and .clusterRoles (not .namespaces) (not $.Values.watchNamespaces) -}}
{{- fail "binding.namespaces: required with binding.clusterRoles, because watchNamespaces is empty: name those in which they may be bound" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The namespaces of roles, NAMESPACE/NAME. */}}
{{- define "admitkit.namespacesOf" -}}
{{- $all := list -}}
{{- range . -}}{{- $all = append $all (regexFind "^[^/]*" .) -}}{{- end -}}
{{- join "," $all -}}
{{- end -}}

{{/* Helm's error about a pattern that is none names this template. */}}
{{- define "audit.redact" -}}
{{- range . -}}{{- $_ := mustRegexMatch . "" -}}{{- end -}}
{{- end -}}

{{/* Values that nothing reads are an error. */}}
{{- define "admitkit.checkHooks" -}}
{{- $values := .Values -}}
{{- if not $values.hooks.enabled -}}
{{- range $name := list "kinds" "namespaces" "targetLabelSelector" "extraArgs" "extraEnv" -}}
{{- if get $values.hooks $name -}}
{{- fail (printf "hooks.%s: has no effect, because hooks.enabled is false" $name) -}}
{{- end -}}
{{- end -}}
{{- if $values.serviceAccount.hooksName -}}
{{- fail "serviceAccount.hooksName: has no effect, because hooks.enabled is false" -}}
{{- end -}}
{{- end -}}
{{- range $values.hooks.extraArgs -}}
{{- $flag := regexFind "^--[a-z-]+" . -}}
{{- $value := get (dict "--hooks-kinds" "kinds" "--hooks-namespaces" "namespaces" "--hooks-workers" "workers" "--hooks-target-label-selector" "targetLabelSelector" "--target-label-selector" "targetLabelSelector") $flag -}}
{{- if $value -}}
{{- fail (printf "hooks.extraArgs: %s: set hooks.%s instead, by which the rights go" . $value) -}}
{{- end -}}
{{- end -}}
{{- if and $values.hooks.enabled (not (include "admitkit.operates" .)) -}}
{{- range $name, $set := dict "scan.every" $values.scan.every "watchNamespaces" $values.watchNamespaces "podSelector" $values.podSelector "ignoreUntilProbed" $values.ignoreUntilProbed "hostNetwork" $values.hostNetwork "webhookAnnotations" $values.webhookAnnotations "excludeNamespaces" $values.excludeNamespaces "tolerateSelectorTerms" $values.tolerateSelectorTerms "rbac.extraRules" $values.rbac.extraRules "rbac.extraClusterRules" $values.rbac.extraClusterRules "extraArgs" $values.extraArgs "extraEnv" $values.extraEnv "extraVolumes" $values.extraVolumes "extraVolumeMounts" $values.extraVolumeMounts "tracing.endpoint" $values.tracing.endpoint "networkPolicy.apiServers" $values.networkPolicy.apiServers "tls.clientCA.configMap" $values.tls.clientCA.configMap -}}
{{- if $set -}}
{{- fail (printf "%s: has no effect, because audit.enabled and access.enabled are false and hooks have no webhooks" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* How often it is scanned, as the program checks it. */}}
{{- define "admitkit.checkScan" -}}
{{- with .Values.scan.every -}}
{{- $began := toDate "2006" "2000" -}}
{{- if (mustDateModify . $began).Before (mustDateModify "1m" $began) -}}
{{- fail (printf "scan.every: %s: must be at least 1m" .) -}}
{{- end -}}
{{- else -}}
{{- include "admitkit.needs" (list "scan" "every" .Values.scan (dict "reports" false)) -}}
{{- if .Values.serviceAccount.scannerName -}}
{{- fail "serviceAccount.scannerName: has no effect, because scan.every is empty" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Each port has one use. */}}
{{- define "admitkit.checkPorts" -}}
{{- if eq (int .port) (int .healthPort) -}}
{{- fail (printf "port: %d is the port of the probes, healthPort; choose another" (int .port)) -}}
{{- end -}}
{{- if and .metrics.enabled (eq (int .port) (int .metrics.port)) -}}
{{- fail (printf "port: %d is the port of the metrics, metrics.port; choose another, or set metrics.enabled to false" (int .port)) -}}
{{- end -}}
{{- if and .metrics.enabled (eq (int .healthPort) (int .metrics.port)) -}}
{{- fail (printf "healthPort: %d is the port of the metrics, metrics.port; choose another" (int .healthPort)) -}}
{{- end -}}
{{- if and .hostNetwork (has 10250 (list (int .port) (int .healthPort) (int .metrics.port))) -}}
{{- fail "hostNetwork: port 10250 of a node is its kubelet's; choose another" -}}
{{- end -}}
{{- end -}}

{{/* Each process has its own ServiceAccount, which the release makes, or which is there. */}}
{{- define "admitkit.checkAccounts" -}}
{{- $account := .Values.serviceAccount -}}
{{- $names := list -}}
{{- $required := list -}}
{{- if include "admitkit.operates" . -}}
{{- $names = append $names (include "admitkit.accountName" (dict "root" . "component" "server")) -}}
{{- $required = append $required "name" -}}
{{- end -}}
{{- if .Values.hooks.enabled -}}
{{- $names = append $names (include "admitkit.accountName" (dict "root" . "component" "hooks")) -}}
{{- $required = append $required "hooksName" -}}
{{- end -}}
{{- if include "admitkit.isSplit" . -}}
{{- $names = append $names (include "admitkit.accountName" (dict "root" . "component" "registrar")) -}}
{{- $required = append $required "registrarName" -}}
{{- end -}}
{{- if include "admitkit.reconcilesApart" . -}}
{{- $names = append $names (include "admitkit.accountName" (dict "root" . "component" "reconciler")) -}}
{{- $required = append $required "reconcilerName" -}}
{{- end -}}
{{- if include "admitkit.scans" . -}}
{{- $names = append $names (include "admitkit.accountName" (dict "root" . "component" "scanner")) -}}
{{- $required = append $required "scannerName" -}}
{{- end -}}
{{- range $required -}}
{{- if not (or $account.create (get $account .)) -}}
{{- fail (printf "serviceAccount.%s: required, because serviceAccount.create is false: name a ServiceAccount that exists" .) -}}
{{- end -}}
{{- end -}}
{{- if ne (len $names) (len (uniq $names)) -}}
{{- fail (printf "serviceAccount: %s: each process needs a ServiceAccount of its own, or it would have the rights of the others" (join ", " $names)) -}}
{{- end -}}
{{- end -}}

{{/* Where access is granted, as the program checks it. */}}
{{- define "admitkit.checkPlaces" -}}
{{- $named := .Values.access.namespaces | default list -}}
{{- if .Values.access.enabled -}}
{{- if not (or $named .Values.watchNamespaces) -}}
{{- fail "access.namespaces: required, because watchNamespaces is empty: name the namespaces in which access may be granted, or set it to [\"*\"] for all but the control plane's and the manager's own. The process that reconciles can do there what an administrator can, and so can somebody who takes it over, with * in the whole cluster" -}}
{{- end -}}
{{- if and (has "*" $named) (gt (len $named) 1) -}}
{{- fail "access.namespaces: * stands for all, and must be alone" -}}
{{- end -}}
{{- if has .Release.Namespace $named -}}
{{- fail (printf "access.namespaces: %s is the manager's own namespace: who gets into its Pods could grant themselves anything" .Release.Namespace) -}}
{{- end -}}
{{- range $named | default .Values.watchNamespaces -}}
{{- if has . (list "kube-system" "kube-node-lease") -}}
{{- fail (printf "%s: %s is a namespace of the control plane: who gets into its Pods could grant themselves anything" (ternary "access.namespaces" "watchNamespaces" (gt (len $named) 0)) .) -}}
{{- end -}}
{{- end -}}
{{- $closed := list "kube-system" "kube-node-lease" .Release.Namespace -}}
{{- $places := $named | default .Values.watchNamespaces -}}
{{- range .Values.access.roles -}}
{{- $namespace := regexFind "^[^/]*" . -}}
{{- if not (ternary (not (has $namespace $closed)) (has $namespace $places) (has "*" $places)) -}}
{{- fail (printf "access.roles: %s: no access is granted in namespace %s: add it to access.namespaces" . $namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
