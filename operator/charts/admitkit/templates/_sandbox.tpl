{{/* The sandbox: its objects are those of files/sandbox, which make generate writes from what the program prints. */}}

{{/* The files of the parts that the values have. */}}
{{- define "admitkit.sandboxParts" -}}
{{- $parts := list "controller" -}}
{{- with .Values.sandbox -}}
{{- if .auditObjects }}{{ $parts = append $parts "objects" }}{{ end -}}
{{- if .interactive }}{{ $parts = append $parts "interactive" }}{{ end -}}
{{- if ne .egress.networkPolicy "off" }}{{ $parts = append $parts "egress" }}{{ end -}}
{{- if eq .egress.networkPolicy "auto" }}{{ $parts = append $parts "egress-auto" }}{{ end -}}
{{- if .egress.cilium }}{{ $parts = append $parts "egress-cilium" }}{{ end -}}
{{- if or .proxy.enabled .broker.enabled }}{{ $parts = append $parts "proxy" }}{{ if .proxy.upstreamCA }}{{ $parts = append $parts "proxy-upstream" }}{{ end }}{{ end -}}
{{- if .broker.enabled }}{{ $parts = concat $parts (list "leases" "broker") }}{{ end -}}
{{- if include "admitkit.hasNetworkPolicy" $ }}
{{- $parts = append $parts "network" -}}
{{- if .broker.enabled }}{{ $parts = append $parts "broker-network" }}{{ end -}}
{{- end -}}
{{- end -}}
{{ toJson $parts }}
{{- end -}}

{{/* The objects, by what identifies them, as JSON: what several parts say of a role adds up. */}}
{{- define "admitkit.sandboxObjects" -}}
{{- $objects := dict -}}
{{- $broker := .Values.sandbox.broker -}}
{{- $image := include "admitkit.image" (dict "root" . "image" .Values.sandbox.image) -}}
{{- range include "admitkit.sandboxParts" . | fromJsonArray -}}
{{- $text := $.Files.Get (printf "files/sandbox/%s.yaml" .) | replace "placeholder-own" $.Release.Namespace | replace "placeholder-broker" $broker.namespace | replace "placeholder-image" $image | replace "placeholder-upstream" $.Values.sandbox.proxy.upstreamCA -}}
{{- range splitList "\n---\n" $text -}}
{{- $document := . -}}
{{- $namespaces := list "" -}}
{{- if contains "namespace: placeholder-runs" $document -}}
{{- $namespaces = $.Values.sandbox.namespaces -}}
{{- else -}}
{{- /* A list of names. */ -}}
{{- $document = replace "- placeholder-runs" (printf "- %s" (join "\n  - " $.Values.sandbox.namespaces)) $document -}}
{{- end -}}
{{- range $namespaces -}}
{{- $object := $document | replace "placeholder-runs" . | fromYaml -}}
{{- if hasKey $object "kind" -}}
{{- $key := printf "%s %s/%s" $object.kind ($object.metadata.namespace | default "") $object.metadata.name -}}
{{- $there := get $objects $key -}}
{{- if and $there (hasKey $object "rules") -}}
{{- $_ := set $there "rules" (concat $there.rules $object.rules | uniq) -}}
{{- else if not $there -}}
{{- $_ := set $objects $key $object -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ toJson $objects }}
{{- end -}}

{{/* The flags that all processes of a command have. Takes root, command, namespace and more. */}}
{{- define "admitkit.sandboxFlags" -}}
{{- $values := .root.Values -}}
{{- $name := ternary "sandbox" "sandbox-broker" (eq .command "controller") -}}
{{- $flags := list "--leader-election=true" (printf "--leaf-secret-name=%s-certificate" $name) (printf "--service-name=%s" $name) (printf "--webhook-namespace=%s" .namespace) (printf "--sandbox-namespaces=%s" (join "," $values.sandbox.namespaces)) -}}
{{- with $values.clusterName }}{{ $flags = append $flags (printf "--cluster-name=%s" .) }}{{ end -}}
{{- if ne $values.logLevel "info" }}{{ $flags = append $flags (printf "--zap-log-level=%s" $values.logLevel) }}{{ end -}}
{{- if ne (int $values.drainPeriodSeconds) 10 }}{{ $flags = append $flags (printf "--drain-period=%ds" (int $values.drainPeriodSeconds)) }}{{ end -}}
{{ concat $flags .more | sortAlpha | toJson }}
{{- end -}}

{{/* ... those of the controller ... */}}
{{- define "admitkit.sandboxControllerFlags" -}}
{{- $flags := list -}}
{{- $image := include "admitkit.image" (dict "root" . "image" .Values.sandbox.image) -}}
{{- with .Values.sandbox -}}
{{- $flags = concat $flags .extraArgs (list (printf "--sandbox-network-policy=%s" .egress.networkPolicy)) -}}
{{- if not .auditObjects }}{{ $flags = append $flags "--audit-objects=false" }}{{ end -}}
{{- if .interactive }}{{ $flags = append $flags "--sandbox-interactive=true" }}{{ end -}}
{{- if .egress.cilium }}{{ $flags = append $flags "--sandbox-cilium=true" }}{{ end -}}
{{- if ne .startTimeout "15m" }}{{ $flags = append $flags (printf "--sandbox-start-timeout=%s" .startTimeout) }}{{ end -}}
{{- if ne (int .workers) 16 }}{{ $flags = append $flags (printf "--sandbox-workers=%d" (int .workers)) }}{{ end -}}
{{- if .seed.enabled }}{{ $flags = append $flags (printf "--sandbox-seed-image=%s" (.seed.image | default $image)) }}{{ end -}}
{{- $collector := .collector.namespace -}}
{{- if $.Values.sessions.enabled -}}
{{- range $.Values.sessions.namespaces }}{{ if and (not $collector) (has . $.Values.sandbox.namespaces) }}{{ $collector = $.Release.Namespace }}{{ end }}{{ end -}}
{{- end -}}
{{- with $collector }}{{ $flags = concat $flags (list (printf "--sandbox-collector-namespace=%s" .) (printf "--sandbox-collector-port=%d" (int ($.Values.sandbox.collector.port | default $.Values.sessions.port)))) -}}
{{- else }}{{ if .collector.port }}{{ fail "sandbox.collector.port: has no effect without sandbox.collector.namespace: set that, or leave this out" }}{{ end }}{{ end -}}
{{- with .egress.podCIDRs }}{{ $flags = append $flags (printf "--cluster-pod-cidrs=%s" (join "," .)) }}{{ end -}}
{{- with .egress.serviceCIDRs }}{{ $flags = append $flags (printf "--cluster-service-cidrs=%s" (join "," .)) }}{{ end -}}
{{- if or .proxy.enabled .broker.enabled }}{{ $flags = append $flags (printf "--sandbox-proxy-image=%s" $image) }}{{ end -}}
{{- with .proxy.upstreamCA }}{{ $flags = append $flags (printf "--sandbox-proxy-upstream-ca=%s" .) }}{{ end -}}
{{- if .broker.enabled }}{{ $flags = append $flags (printf "--broker-namespace=%s" .broker.namespace) }}{{ end -}}
{{- end -}}
{{ include "admitkit.sandboxFlags" (dict "root" . "command" "controller" "namespace" .Release.Namespace "more" $flags) }}
{{- end -}}

{{/* ... and of the broker. */}}
{{- define "admitkit.sandboxBrokerFlags" -}}
{{- $flags := list (printf "--broker-controller=system:serviceaccount:%s:sandbox-reconciler" .Release.Namespace) -}}
{{- with .Values.sandbox.broker -}}
{{- $flags = concat $flags .extraArgs -}}
{{- if ne .leaseDuration "5m" }}{{ $flags = append $flags (printf "--lease-duration=%s" .leaseDuration) }}{{ end -}}
{{- if ne (int .sourceConnections) 32 }}{{ $flags = append $flags (printf "--broker-source-connections=%d" (int .sourceConnections)) }}{{ end -}}
{{- end -}}
{{ include "admitkit.sandboxFlags" (dict "root" . "command" "broker" "namespace" .Values.sandbox.broker.namespace "more" $flags) }}
{{- end -}}

{{/* What the values say of every Pod. Takes root and pod, as JSON. */}}
{{- define "admitkit.sandboxPod" -}}
{{- $pod := .pod -}}
{{- with .root.Values -}}
{{- $_ := set $pod "terminationGracePeriodSeconds" (add (int .drainPeriodSeconds) 40) -}}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "imagePullSecrets" -}}
{{- with get $.root.Values $field }}{{ $_ := set $pod $field . }}{{ end -}}
{{- end -}}
{{- range $pod.containers -}}
{{- $_ := set . "resources" $.root.Values.sandbox.resources -}}
{{- end -}}
{{- end -}}
{{ toJson $pod }}
{{- end -}}

{{/* An object with what the values say of it, or nothing. Takes root and object. */}}
{{- define "admitkit.sandboxObject" -}}
{{- $values := .root.Values -}}
{{- $object := .object -}}
{{- $kind := $object.kind -}}
{{- $rbac := hasPrefix "rbac." $object.apiVersion -}}
{{- $skip := and $rbac (not $values.rbac.create) -}}
{{- if eq $kind "Namespace" -}}
{{- $skip = or (eq $object.metadata.name .root.Release.Namespace) (not $values.sandbox.broker.createNamespace) -}}
{{- /* It has the leases that are still to be revoked. */ -}}
{{- $_ := set $object.metadata "annotations" (dict "helm.sh/resource-policy" "keep") -}}
{{- else if eq $kind "PodDisruptionBudget" -}}
{{- $skip = not (and $values.podDisruptionBudget.enabled (gt (int $values.replicas) 1)) -}}
{{- else if eq $kind "Deployment" -}}
{{- $container := first $object.spec.template.spec.containers -}}
{{- $flags := ternary (include "admitkit.sandboxBrokerFlags" .root) (include "admitkit.sandboxControllerFlags" .root) (eq (first $container.args) "broker") | fromJsonArray -}}
{{- $_ := set $container "args" (concat $container.args $flags) -}}
{{- $_ := set $object.spec.template "spec" (include "admitkit.sandboxPod" (dict "root" .root "pod" $object.spec.template.spec) | fromJson) -}}
{{- if gt (int $object.spec.replicas) 1 }}{{ $_ := set $object.spec "replicas" (int $values.replicas) }}{{ end -}}
{{- else if and (eq $kind "NetworkPolicy") $values.networkPolicy.apiServers -}}
{{- range $object.spec.ingress -}}
{{- if eq (toString (first .ports).port) "webhook" -}}
{{- $from := list -}}
{{- range $values.networkPolicy.apiServers }}{{ $from = append $from (ternary (dict "ipBlock" (dict "cidr" .)) . (kindIs "string" .)) }}{{ end -}}
{{- $_ := set . "from" $from -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $skip -}}
{{- $labels := merge ($object.metadata.labels | default dict) (include "admitkit.labels" (dict "root" .root "component" "sandbox") | fromYaml) -}}
{{- $_ := set $object.metadata "labels" $labels -}}
{{ toYaml $object }}
{{- end -}}
{{- end -}}

{{/* The Deployments of the controller. */}}
{{- define "admitkit.sandboxDeployments" -}}
sandbox,sandbox-registrar,sandbox-reconciler
{{- end -}}

{{/* What the schema cannot say of the sandbox. */}}
{{- define "admitkit.checkSandbox" -}}
{{- with .Values.sandbox -}}
{{- include "admitkit.needs" (list "sandbox" "enabled" . (dict "namespaces" list "interactive" false "startTimeout" "15m" "workers" 16 "auditObjects" true "extraArgs" list)) -}}
{{- include "admitkit.needs" (list "sandbox.broker" "enabled" .broker (dict "namespace" "sandbox-broker" "createNamespace" true "leaseDuration" "5m" "sourceConnections" 32 "extraArgs" list)) -}}
{{- include "admitkit.needs" (list "sandbox.seed" "enabled" .seed (dict "image" "")) -}}
{{- if not .enabled -}}
{{- range $path, $set := dict "sandbox.proxy.enabled" .proxy.enabled "sandbox.broker.enabled" .broker.enabled "sandbox.seed.enabled" .seed.enabled "sandbox.collector.namespace" .collector.namespace "sandbox.egress.cilium" .egress.cilium "sandbox.egress.podCIDRs" .egress.podCIDRs "sandbox.egress.serviceCIDRs" .egress.serviceCIDRs -}}
{{- if $set }}{{ fail (printf "%s: has no effect without sandbox.enabled: set that, or leave this out" $path) }}{{ end -}}
{{- end -}}
{{- else -}}
{{- if not .namespaces -}}
{{- fail "sandbox.namespaces: required with sandbox.enabled: name the namespaces in which SandboxRuns may run" -}}
{{- end -}}
{{- range .namespaces -}}
{{- if has . (list "kube-system" "kube-node-lease" $.Release.Namespace) -}}
{{- fail (printf "sandbox.namespaces: %s is a namespace of the control plane, or the manager's own: what runs there is too near to its Secrets" .) -}}
{{- end -}}
{{- end -}}
{{- if and .egress.cilium (eq .egress.networkPolicy "off") -}}
{{- fail "sandbox.egress.cilium: has no effect, because sandbox.egress.networkPolicy is off" -}}
{{- end -}}
{{- if eq (include "admitkit.fullname" $) "sandbox" -}}
{{- fail "fullnameOverride: sandbox is the name of the sandbox's own objects: choose another" -}}
{{- end -}}
{{- include "admitkit.checkSandboxBroker" $ -}}
{{- include "admitkit.checkSandboxArgs" (list "sandbox.extraArgs" .extraArgs) -}}
{{- include "admitkit.checkSandboxArgs" (list "sandbox.broker.extraArgs" .broker.extraArgs) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "admitkit.checkSandboxBroker" -}}
{{- with .Values.sandbox -}}
{{- if and .proxy.upstreamCA (not .proxy.enabled) (not .broker.enabled) -}}
{{- fail "sandbox.proxy.upstreamCA: has no effect without sandbox.proxy.enabled or sandbox.broker.enabled: set one of them, or leave this out" -}}
{{- end -}}
{{- if or .proxy.enabled .broker.enabled -}}
{{- if or (not .egress.podCIDRs) (not .egress.serviceCIDRs) -}}
{{- fail "sandbox.egress.podCIDRs, serviceCIDRs: required with sandbox.proxy.enabled and sandbox.broker.enabled: a proxy reaches the internet, and the addresses of the cluster's Pods and Services are not part of it" -}}
{{- end -}}
{{- end -}}
{{- if .broker.enabled -}}
{{- if has .broker.namespace (append .namespaces $.Release.Namespace) -}}
{{- fail (printf "sandbox.broker.namespace: %s is one in which runs run, or that of the release: what is there is too near to the leases" .broker.namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Flags by which the rights or the Pods go have values of their own. Takes the path, and the flags. */}}
{{- define "admitkit.checkSandboxArgs" -}}
{{- $path := index . 0 -}}
{{- range index . 1 -}}
{{- $flag := regexFind "^--[a-z0-9-]+" . -}}
{{- if not $flag -}}
{{- fail (printf "%s: %s is no flag: write it as --NAME=VALUE" $path .) -}}
{{- end -}}
{{- if or (hasPrefix "--sandbox-" $flag) (hasPrefix "--broker-" $flag) (hasPrefix "--metrics-" $flag) (has $flag (list "--audit-objects" "--cluster-name" "--cluster-pod-cidrs" "--cluster-service-cidrs" "--drain-period" "--fingerprint" "--foreign-ca-bundle" "--health-address" "--leader-election" "--leaf-secret-name" "--lease-duration" "--namespace" "--port" "--probe" "--reconciler-user" "--service-name" "--service-port" "--setup-certificate-name" "--webhook-namespace" "--zap-log-level")) -}}
{{- fail (printf "%s: %s: a value sets it, or the rights go by it: leave it out" $path $flag) -}}
{{- end -}}
{{- end -}}
{{- end -}}
