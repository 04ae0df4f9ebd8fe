{{/* Lays one dictionary over another, in place. (what lies under, what is laid over it)
     Not sprig's merge: to it 0 and false are nothing. */}}
{{- define "models.overlay" -}}
{{- $under := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- $there := get $under $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $there) -}}
{{- include "models.overlay" (list $there $value) -}}
{{- else -}}
{{- $_ := set $under $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
