package recording

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension/redact"
)

// Redactor takes the secrets out of entries: the data of Secrets, the values whose names say that
// they are secret, and what package extension/redact finds in texts, also where an object is inside
// a text, and where an answer repeats a value.
//
// A placeholder takes the place of a secret. Equal values have equal placeholders, so that
// handlers that compare them decide the same.
//
// It is not safe for concurrent use.
type Redactor struct {
	names *redact.Redactor
	key   []byte
	// known are names that were looked at before, since nearly all come again.
	known map[string]bool
}

// maxKnown bounds how many names are kept.
const maxKnown = 10_000

// isSecret reports whether the value behind a name is secret.
func (r *Redactor) isSecret(name string) bool {
	secret, known := r.known[name]
	if !known {
		secret = r.names.IsSecret(name)
		if len(r.known) < maxKnown {
			r.known[name] = secret
		}
	}
	return secret
}

// patterns are those of names in objects, besides [redact.Default].
var patterns = append(slices.Clone(redact.Default), `key[-_]?data`, `(?:client|signing|encryption|master|account|shared|ssh|deploy|gpg|pgp|license|auth|app|storage|root)[-_]?key`,
	`connection[-_]?string`, `(?:^|[^a-z])(?:dsn|pin|otp|creds?|auth|jwt|bearer|salt)(?:$|[^a-z])`, `(?:^|[^a-z]|db|user|admin|root|smtp|mail|redis|ftp|my|pg)pass(?:$|[^a-z])`, `dockerc(?:onfigjson|fg)`, `(?:^|[^a-z])sig(?:$|[^a-z])`, `amz[-_]?signature`)

// NewRedactor returns a Redactor with a key of its own, by which nobody can guess values from
// their placeholders. It is never stored.
func NewRedactor() (*Redactor, error) {
	names, err := redact.New(patterns...)
	if err != nil {
		return nil, err
	}
	key := make([]byte, sha256.Size)
	_, err = rand.Read(key)
	return &Redactor{names: names, key: key, known: map[string]bool{}}, err
}

// Entry takes the secrets out of an entry, and notes what was replaced.
func (r *Redactor) Entry(e *Entry) error {
	w := &walk{Redactor: r, secrets: map[string]string{}, identifiers: map[string]bool{}}
	w.texts = r.names.Thorough(w.placeholder)
	var request map[string]any
	if err := decode(e.Request, &request); err != nil {
		return err
	}
	var object any
	if len(e.Answer.Object) > 0 {
		if err := decode(e.Answer.Object, &object); err != nil {
			return err
		}
	}
	request, _ = w.object("request", request).(map[string]any)
	object = w.value("answer.object", "", object)
	w.answer(&e.Answer)
	if w.repeats = w.replacer(); w.repeats != nil {
		request, _ = w.repeated("request", "", request).(map[string]any)
		object = w.repeated("answer.object", "", object)
		w.repeatedAnswer(&e.Answer)
	}
	e.Replaced = w.paths(e.Replaced)
	var err error
	if e.Request, err = encode(request); err != nil || object == nil {
		return err
	}
	e.Answer.Object, err = encode(object)
	return err
}

// walk is the redaction of one entry.
type walk struct {
	*Redactor
	texts *redact.Redactor
	// secrets has the placeholders by the secrets that were found.
	secrets map[string]string
	// identifiers are values that stay, wherever they are.
	identifiers map[string]bool
	repeats     *strings.Replacer
	replaced    []string
	inSchema    bool // of a CustomResourceDefinition, whose names are no values'
	depth       int  // of objects in texts
}

// identifier has the names of fields whose text stays, because it says what an object is.
var identifier = newSet("authentication.kubernetes.io/credential-id apiVersion kind name generateName namespace uid resourceVersion image imageID username groups nodeName serviceAccountName operation group version resource subResource")

// reference matches the names of fields that say where a secret is, or how it is used, but not
// what it is, such as secretName and tokenExpirationSeconds.
var reference = regexp.MustCompile(`[a-z](?:Names?|Namespaces?|Refs?|References?|Paths?|Kind|Policy|Type|Class|Selector|Labels|Annotations|Mode|Version|Format|Algorithm|` +
	`Audiences?|Issuer|URL|Endpoint|Host|Port|Enabled|Seconds|TTL|Duration|Period|Timeout|Expiry|Expiration|Count|Size|Length)$`)

// inside has the names of fields below the name of a secret whose values are none: those of
// references, volumes and token requests.
var inside = newSet("apiVersion kind name namespace group apiGroup version uid path mode defaultMode optional audience audiences fieldPath resourceVersion")

func newSet(names string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(names) {
		set[name] = true
	}
	return set
}

const maxDepth = 4

// object redacts the fields of an object.
func (w *walk) object(path string, object map[string]any) any {
	if object["kind"] == "CustomResourceDefinition" && !w.inSchema {
		w.inSchema = true
		defer func() { w.inSchema = false }()
	}
	taken := map[string]bool{}
	take := func(name string, redacted any) {
		object[name] = redacted
		taken[name] = true
	}
	if items := listed(object); len(items) > 0 {
		for i, item := range items {
			items[i] = w.item(fmt.Sprintf("%s.items[%d]", path, i), strings.TrimSuffix(object["kind"].(string), "List"), item)
		}
		take("items", items)
	}
	for name, as := range dataOf(object) {
		if data, ok := object[name].(map[string]any); ok {
			for key, value := range data {
				data[key] = as(w, path+"."+name+"["+key+"]", value)
			}
			take(name, data)
		}
	}
	command, args := texts(object["command"]), texts(object["args"])
	if len(command)+len(args) > 0 { // the last of one may be the flag of the other's first
		clean := w.texts.Command(slices.Concat(command, args))
		if len(command) > 0 {
			take("command", w.list(path+".command", command, clean[:len(command)]))
		}
		if len(args) > 0 {
			take("args", w.list(path+".args", args, clean[len(command):]))
		}
	}
	if w.isNamedSecret(object) {
		for _, name := range []string{"value", "values"} {
			if value, ok := object[name]; ok {
				take(name, w.secret(path+"."+name, value))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if !taken[name] {
			object[name] = w.field(path+"."+name, name, object[name])
		}
	}
	return object
}

// listed returns the items of a list of Secrets or ConfigMaps, which do not say their kind.
func listed(object map[string]any) []any {
	if kind := object["kind"]; kind != "SecretList" && kind != "ConfigMapList" {
		return nil
	}
	items, _ := object["items"].([]any)
	return items
}

// item redacts an object of a kind that it may not say itself.
func (w *walk) item(path, kind string, item any) any {
	object, ok := item.(map[string]any)
	if !ok {
		return w.value(path, "", item)
	}
	if _, says := object["kind"]; !says {
		object["kind"] = kind
		defer delete(object, "kind")
	}
	return w.object(path, object)
}

// dataOf returns the fields of an object whose values are secret by its kind.
func dataOf(object map[string]any) map[string]func(*walk, string, any) any {
	switch object["kind"] {
	case "Secret":
		return map[string]func(*walk, string, any) any{"data": (*walk).encoded, "stringData": (*walk).secret}
	case "ConfigMap": // nobody can tell what is in it
		return map[string]func(*walk, string, any) any{"binaryData": (*walk).encoded}
	}
	return nil
}

// isNamedSecret reports whether an object is the name and the value of a secret, such as an
// environment variable or a header of HTTP.
func (w *walk) isNamedSecret(object map[string]any) bool {
	for _, field := range []string{"name", "key", "header"} {
		if name, ok := object[field].(string); ok && w.isSecret(name) {
			return true
		}
	}
	return false
}

// field redacts the value of a field.
func (w *walk) field(path, name string, value any) any {
	if !w.inSchema && w.isSecret(name) && !identifier[name] && !reference.MatchString(name) && !isGroup(name, value) {
		return w.secret(path, value)
	}
	return w.value(path, name, value)
}

// isGroup reports whether the name is that of a group of settings, such as auth: {type: basic}, in
// which not everything is secret.
func isGroup(name string, value any) bool {
	_, isObject := value.(map[string]any)
	return isObject && strings.EqualFold(name, "auth")
}

// value redacts a value that is not secret by its name.
func (w *walk) value(path, name string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		return w.object(path, v)
	case []any:
		if list := texts(v); len(list) > 0 && !identifier[name] {
			return w.list(path, list, w.texts.Command(list))
		}
		for i := range v {
			v[i] = w.value(fmt.Sprintf("%s[%d]", path, i), name, v[i])
		}
	case string:
		if identifier[name] {
			w.identifiers[v] = true
			return v
		}
		return w.text(path, v)
	}
	return value
}

// texts returns a list of texts alone, nil if it has something else.
func texts(value any) []string {
	list, _ := value.([]any)
	all := make([]string, 0, len(list))
	for _, item := range list {
		text, ok := item.(string)
		if !ok {
			return nil
		}
		all = append(all, text)
	}
	return all
}

// list returns texts that were redacted as a command, and each by itself.
func (w *walk) list(path string, before, after []string) []any {
	list := make([]any, len(after))
	for i, text := range after {
		path := fmt.Sprintf("%s[%d]", path, i)
		if text != before[i] {
			w.note(path)
			list[i] = text
			continue
		}
		list[i] = w.text(path, text)
	}
	return list
}

// text redacts a text, which may be an object in JSON, or objects in YAML.
func (w *walk) text(path, text string) string {
	if start := strings.TrimSpace(text); w.depth < maxDepth && (strings.HasPrefix(start, "{") || strings.HasPrefix(start, "[")) {
		var inner any
		if decode([]byte(text), &inner) == nil {
			return w.document(path, text, inner)
		}
	}
	for _, redacted := range []func(path, text string) (string, bool){w.embedded, w.manifest} {
		if clean, ok := redacted(path, text); ok {
			return clean
		}
	}
	return w.words(path, text)
}

// secretInJSON matches a text that has a Secret in JSON.
var secretInJSON = regexp.MustCompile(`"kind"\s*:\s*"Secret(?:List)?"`)

// maxEmbedded bounds how often it is tried to read JSON in a text.
const maxEmbedded = 64

// embedded redacts a text in which Secrets are in JSON, one after the other or between other words.
func (w *walk) embedded(path, text string) (clean string, ok bool) {
	if w.depth >= maxDepth || !secretInJSON.MatchString(text) {
		return "", false
	}
	var parts strings.Builder
	for range maxEmbedded {
		at := strings.IndexByte(text, '{')
		if at < 0 {
			break
		}
		var inner any
		decoder := json.NewDecoder(strings.NewReader(text[at:]))
		decoder.UseNumber()
		if decoder.Decode(&inner) != nil {
			parts.WriteString(w.words(path, text[:at+1]))
			text = text[at+1:]
			continue
		}
		end := at + int(decoder.InputOffset())
		parts.WriteString(w.words(path, text[:at]) + w.document(path, text[at:end], inner))
		text, ok = text[end:], true
	}
	return parts.String() + w.words(path, text), ok
}

// words redacts a part of a text without objects.
func (w *walk) words(path, text string) string { return w.replace(path, text, w.texts.Text(text)) }

// onlyInYAML matches a text whose secrets may be recognized only as YAML: those of a Secret,
// values of several lines, and what is below a name.
var onlyInYAML = regexp.MustCompile(`(?m)^[ \t-]*["']?kind["']?:[ \t]*["']?Secret(?:List)?\b|[\w"']:[ \t]*(?:[|>][-+0-9]*)?[ \t]*(?:#.*)?$|^[ \t]*- `)

var separator = regexp.MustCompile(`(?m)^---.*\n`)

// manifest redacts a text that is YAML. It is written anew if something in it is secret.
func (w *walk) manifest(path, text string) (clean string, ok bool) {
	isFlow := strings.HasPrefix(strings.TrimSpace(text), "{") && strings.Contains(text, "Secret")
	if w.depth >= maxDepth || !isFlow && (!strings.ContainsRune(text, '\n') || !onlyInYAML.MatchString(text)) {
		return "", false
	}
	w.depth++
	defer func() { w.depth-- }()
	before, parts := len(w.replaced), separator.Split(text, -1)
	for i, part := range parts {
		document, err := yaml.YAMLToJSON([]byte(part))
		var inner any
		if err != nil || decode(document, &inner) != nil {
			return "", false
		}
		if inner == nil {
			continue
		}
		written, err := yaml.Marshal(plain(w.value(path, "", inner)))
		if err != nil {
			return "", false
		}
		parts[i] = string(written)
	}
	if len(w.replaced) == before {
		return "", false
	}
	return strings.Join(parts, "---\n"), true
}

// plain returns a value whose numbers YAML can write.
func plain(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, item := range v {
			v[key] = plain(item)
		}
	case []any:
		for i, item := range v {
			v[i] = plain(item)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		n, _ := v.Float64() // YAML had it
		return n
	}
	return value
}

// document redacts an object in a text. The text stays as it is if nothing is secret.
func (w *walk) document(path, text string, inner any) string {
	w.depth++
	defer func() { w.depth-- }()
	before := len(w.replaced)
	clean, err := encode(w.value(path, "", inner))
	switch {
	case err != nil:
		return w.placeholder(text)
	case len(w.replaced) == before:
		return text
	case strings.HasSuffix(text, "\n"):
		return string(clean) + "\n"
	}
	return string(clean)
}

// secret replaces a value that is secret by its name.
func (w *walk) secret(path string, value any) any {
	switch v := value.(type) {
	case string:
		if v == "" || v == "true" || v == "false" {
			return v
		}
		if text, ok := decoded(v); ok && isPlaceholder(text) {
			return v
		}
		return w.replace(path, v, w.placeholder(v))
	case json.Number:
		number := w.number(v)
		if number != v {
			w.note(path)
		}
		return number
	case []any:
		for i := range v {
			v[i] = w.secret(fmt.Sprintf("%s[%d]", path, i), v[i])
		}
	case map[string]any:
		_, isItem := v["path"]
		for _, name := range slices.Sorted(maps.Keys(v)) {
			at := path + "." + name
			if inside[name] || reference.MatchString(name) || name == "key" && isItem {
				v[name] = w.value(at, name, v[name])
			} else {
				v[name] = w.secret(at, v[name])
			}
		}
	}
	return value
}

// encoded replaces a value that is in base64.
func (w *walk) encoded(path string, value any) any {
	text, ok := value.(string)
	if !ok || text == "" {
		return w.secret(path, value)
	}
	plain, ok := decoded(text)
	if !ok {
		return w.secret(path, value)
	}
	placeholder := base64.StdEncoding.EncodeToString([]byte(w.placeholder(plain)))
	if placeholder != text {
		w.secrets[text] = placeholder
	}
	return w.replace(path, text, placeholder)
}

func decoded(text string) (string, bool) {
	plain, err := base64.StdEncoding.DecodeString(text)
	return string(plain), err == nil
}

// answer redacts the texts of an answer.
func (w *walk) answer(a *Answer) {
	a.Message = w.text("answer.message", a.Message)
	a.Warnings = slices.Clone(a.Warnings)
	for i, warning := range a.Warnings {
		a.Warnings[i] = w.text(fmt.Sprintf("answer.warnings[%d]", i), warning)
	}
	a.AuditAnnotations = maps.Clone(a.AuditAnnotations)
	for key, text := range a.AuditAnnotations {
		a.AuditAnnotations[key], _ = w.field("answer.auditAnnotations["+key+"]", key, text).(string)
	}
}

// leastRepeated is the length of the shortest secret that is looked for elsewhere. A shorter one
// is a part of too many words.
const leastRepeated = 6

// replacer returns what replaces the secrets that were found wherever else they are, or nil.
func (w *walk) replacer() *strings.Replacer {
	var all []string
	for secret := range w.secrets {
		if len(secret) >= leastRepeated && !w.identifiers[secret] && !strings.Contains(prefix, secret) {
			all = append(all, secret)
		}
	}
	if len(all) == 0 {
		return nil
	}
	// The longest first: one may be a part of another.
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	var pairs []string
	for _, secret := range all {
		pairs = append(pairs, secret, w.secrets[secret])
		quoted := secret
		for range 2 { // in JSON, and in JSON that is a text in JSON
			encoded, err := encode(quoted)
			if err != nil || string(encoded[1:len(encoded)-1]) == quoted {
				break
			}
			quoted = string(encoded[1 : len(encoded)-1])
			pairs = append(pairs, quoted, w.secrets[secret])
		}
	}
	return strings.NewReplacer(pairs...)
}

// repeated replaces the secrets that were found elsewhere.
func (w *walk) repeated(path, name string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, item := range v {
			v[key] = w.repeated(path+"."+key, key, item)
		}
	case []any:
		for i, item := range v {
			v[i] = w.repeated(fmt.Sprintf("%s[%d]", path, i), name, item)
		}
	case string:
		if !identifier[name] {
			return w.replace(path, v, w.repeats.Replace(v))
		}
	}
	return value
}

func (w *walk) repeatedAnswer(a *Answer) {
	a.Message, _ = w.repeated("answer.message", "", a.Message).(string)
	for i, warning := range a.Warnings {
		a.Warnings[i], _ = w.repeated(fmt.Sprintf("answer.warnings[%d]", i), "", warning).(string)
	}
	for key, text := range a.AuditAnnotations {
		a.AuditAnnotations[key], _ = w.repeated("answer.auditAnnotations["+key+"]", "", text).(string)
	}
}

// replace notes a path if its value was replaced.
func (w *walk) replace(path, before, after string) string {
	if after != before {
		w.note(path)
	}
	return after
}

func (w *walk) note(path string) {
	w.replaced = append(w.replaced, path)
}

// maxPaths bounds how many paths an entry names.
const maxPaths = 50

// paths returns what was replaced, with what had been before.
func (w *walk) paths(before []string) []string {
	if len(w.replaced) == 0 {
		return before
	}
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(before, w.replaced))))
	if len(all) > maxPaths {
		all = append(all[:maxPaths], fmt.Sprintf("... and %d more", len(all)-maxPaths))
	}
	return all
}
