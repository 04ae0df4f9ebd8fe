{{- define "kvasir.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select one component's pods; they never change. (context, component) */}}
{{- define "kvasir.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: kvasir
app.kubernetes.io/instance: {{ $root.Release.Name }}
kvasir.dev/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of every object. (context, component) */}}
{{- define "kvasir.labels" -}}
{{- $root := index . 0 -}}
{{ include "kvasir.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods, without what changes with each version. (context, component, its own) */}}
{{- define "kvasir.podLabels" -}}
{{- $root := index . 0 -}}
{{- $selector := include "kvasir.selector" . | fromYaml -}}
{{- toYaml (merge $selector (index . 2) $root.Values.commonLabels) -}}
{{- end -}}

{{/* An image's reference. (context, image) */}}
{{- define "kvasir.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $registry := default $root.Values.global.imageRegistry $image.registry -}}
{{- if not $registry -}}
{{- fail "global.imageRegistry is empty: set it to the registry and path that `make images PUSH=...` pushed to, such as registry.example.com/kvasir" -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s/%s@%s" $registry $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s/%s:%s" $registry $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "kvasir.fleetSecretName" -}}
{{- default (printf "%s-fleet-secret" (include "kvasir.fullname" .)) .Values.fleetSecret.existingSecret -}}
{{- end -}}

{{- define "kvasir.keysSecretName" -}}
{{- default (printf "%s-keys" (include "kvasir.fullname" .)) .Values.apiKeys.existingSecret -}}
{{- end -}}

{{- define "kvasir.pickerSecretName" -}}
{{- default (printf "%s-picker-tls" (include "kvasir.fullname" .)) .Values.router.inferencePool.tls.existingSecret -}}
{{- end -}}

{{/* A Secret that is made where there is none. One that an older version of this chart made is in its
     release's manifest, from which it is taken: made again by the hook, as it is, with the annotation
     that keeps it when the manifest no longer has it. (context, name, data) */}}
{{- define "kvasir.secretMadeOnce" -}}
{{- $root := index . 0 -}}
{{- $there := lookup "v1" "Secret" $root.Release.Namespace (index . 1) -}}
{{- $notes := dict -}}
{{- if $there -}}{{- $notes = default (dict) $there.metadata.annotations -}}{{- end -}}
{{- $kept := eq (get $notes "helm.sh/resource-policy") "keep" -}}
{{- $released := hasKey $notes "meta.helm.sh/release-name" -}}
{{- if or (not $there) (and $released (not $kept)) }}
---
apiVersion: v1
kind: Secret
metadata:
  name: {{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "kvasir.labels" (list $root "router") | nindent 4 }}
  annotations:
    helm.sh/hook: pre-install,pre-upgrade
    # Where nothing was found, nothing may be replaced: a render without a cluster finds nothing.
    helm.sh/hook-delete-policy: {{ ternary "before-hook-creation" "hook-failed" (not (not $there)) }}
    helm.sh/resource-policy: keep
type: Opaque
data:
  {{- toYaml (ternary (get (default (dict) $there) "data") (index . 2) (not (not $there))) | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "kvasir.serviceUrl" -}}
{{- $scheme := ternary "https" "http" .Values.router.tls.enabled -}}
{{- $port := int .Values.router.service.port -}}
{{- $suffix := ternary "" (printf ":%d" $port) (eq $port (ternary 443 80 .Values.router.tls.enabled)) -}}
{{- printf "%s://%s-router.%s.svc%s" $scheme (include "kvasir.fullname" .) .Release.Namespace $suffix -}}
{{- end -}}

{{/* Where clients reach the routers. */}}
{{- define "kvasir.routerUrl" -}}
{{- $router := .Values.router -}}
{{- if $router.url -}}
{{- $router.url -}}
{{- else if and $router.ingress.enabled $router.ingress.hosts -}}
{{- printf "%s://%s" (ternary "https" "http" (gt (len $router.ingress.tls) 0)) (first $router.ingress.hosts) -}}
{{- else if and $router.httpRoute.enabled $router.httpRoute.hostnames -}}
{{- printf "https://%s" (first $router.httpRoute.hostnames) -}}
{{- else -}}
{{- include "kvasir.serviceUrl" . -}}
{{- end -}}
{{- end -}}

{{/* Name of the release's LLMDeploymentClass. */}}
{{- define "kvasir.className" -}}
{{- default (include "kvasir.fullname" .) .Values.class.name -}}
{{- end -}}

{{/* Name of the ClusterRole for what has no namespace, with which the class is deleted. (context, component) */}}
{{- define "kvasir.namesRole" -}}
{{- printf "%s-%s-%s-names" (index . 0).Release.Namespace (include "kvasir.fullname" (index . 0)) (index . 1) -}}
{{- end -}}

{{/* "true" where ClusterRoles are needed. */}}
{{- define "kvasir.clusterWide" -}}
{{- if not .Values.watchNamespaces -}}true{{- end -}}
{{- end -}}

{{- define "kvasir.podSecurity" -}}
{{- $platform := .Values.global.platformUser -}}
{{- $openshift := and (eq $platform "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}
{{- $own := list "runAsUser" "runAsGroup" "fsGroup" -}}
{{- $context := dict "runAsNonRoot" true -}}
{{- range $field, $value := .Values.global.podSecurity -}}
{{- $left := and (or $openshift (eq $platform "always")) (has $field $own) -}}
{{- if not (or (kindIs "invalid" $value) $left) -}}
{{- $_ := set $context $field (ternary (int64 $value) $value (has $field $own)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{- define "kvasir.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where the pods of a component may run. (its values) */}}
{{- define "kvasir.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Roles and bindings for a ServiceAccount: in all namespaces, or in each one that is watched.
     (context, component, rules) */}}
{{- define "kvasir.roles" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $account := printf "%s-%s" (include "kvasir.fullname" $root) $component -}}
{{- $global := include "kvasir.clusterWide" $root -}}
{{- $name := ternary (printf "%s-%s" $root.Release.Namespace $account) $account (eq $global "true") -}}
{{- range $namespace := default (list "") $root.Values.watchNamespaces }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if $global }}Cluster{{ end }}Role
metadata:
  name: {{ $name }}
  {{- if $namespace }}
  namespace: {{ $namespace }}
  {{- end }}
  labels:
    {{- include "kvasir.labels" (list $root $component) | nindent 4 }}
rules:
  {{- index $ 2 | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if $global }}Cluster{{ end }}RoleBinding
metadata:
  name: {{ $name }}
  {{- if $namespace }}
  namespace: {{ $namespace }}
  {{- end }}
  labels:
    {{- include "kvasir.labels" (list $root $component) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ if $global }}Cluster{{ end }}Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}
{{- end -}}
