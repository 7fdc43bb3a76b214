package rego

import (
	"maps"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Why a builtin was taken away.
const (
	network  = "it reaches the network"
	process  = "it tells about the process or its environment"
	chance   = "its value is another one each time"
	keys     = "a policy holds no keys"
	schemas  = "a schema can refer to files and addresses"
	program  = "it runs a program in a program"
	endless  = "what it makes can be too large, and it cannot be interrupted"
	internal = "it is not for policies"
)

// takenAway are the builtins of OPA that a hook cannot call, and why.
var takenAway = map[string]string{
	"http.send":                                 network,
	"net.lookup_ip_addr":                        network,
	"providers.aws.sign_req":                    keys,
	"opa.runtime":                               process,
	"trace":                                     process,
	"rand.intn":                                 chance,
	"uuid.rfc4122":                              chance,
	"json.match_schema":                         schemas,
	"json.verify_schema":                        schemas,
	"strings.render_template":                   program,
	"rego.parse_module":                         program,
	"graphql.parse":                             program,
	"graphql.parse_and_verify":                  program,
	"graphql.parse_query":                       program,
	"graphql.parse_schema":                      program,
	"graphql.is_valid":                          program,
	"graphql.schema_is_valid":                   program,
	"net.cidr_expand":                           endless,
	"net.cidr_contains_matches":                 endless,
	"graph.reachable_paths":                     endless,
	"regex.globs_match":                         endless,
	"json.marshal_with_options":                 endless,
	"internal.print":                            internal,
	"internal.test_case":                        internal,
	"crypto.x509.parse_certificates":            keys,
	"crypto.x509.parse_rsa_private_key":         keys,
	"crypto.x509.parse_keypair":                 keys,
	"crypto.parse_private_keys":                 keys,
	"crypto.x509.parse_certificate_request":     keys,
	"crypto.x509.parse_and_verify_certificates": keys,
	"crypto.x509.parse_and_verify_certificates_with_options": keys,
	"io.jwt.decode":        keys,
	"io.jwt.decode_verify": keys, "io.jwt.encode_sign": keys, "io.jwt.encode_sign_raw": keys,
	"io.jwt.verify_rs256": keys, "io.jwt.verify_rs384": keys, "io.jwt.verify_rs512": keys,
	"io.jwt.verify_ps256": keys, "io.jwt.verify_ps384": keys, "io.jwt.verify_ps512": keys,
	"io.jwt.verify_es256": keys, "io.jwt.verify_es384": keys, "io.jwt.verify_es512": keys,
	"io.jwt.verify_hs256": keys, "io.jwt.verify_hs384": keys, "io.jwt.verify_hs512": keys,
	"io.jwt.verify_eddsa": keys,
}

// allowed are the builtins that a hook can call, and no other, so that one that a new
// OPA brings is not there until somebody has read what it does.
var allowed = map[string]bool{}

func init() {
	for _, names := range [][]string{
		{"eq", "assign", "internal.member_2", "internal.member_3", "gt", "gte", "lt", "lte", "neq", "equal"},
		{"plus", "minus", "mul", "div", "ceil", "floor", "round", "abs", "rem", "numbers.range", "numbers.range_step"},
		{"bits.or", "bits.and", "bits.negate", "bits.xor", "bits.lsh", "bits.rsh"},
		{"and", "or", "set_diff", "intersection", "union"},
		{"count", "sum", "product", "max", "min", "any", "all", "sort"},
		{"array.concat", "array.flatten", "array.slice", "array.reverse"},
		{"to_number", "cast_object", "cast_null", "cast_boolean", "cast_string", "cast_set", "cast_array"},
		{
			"regex.is_valid", "regex.match", "re_match", "regex.split", "regex.template_match", "regex.find_n",
			"regex.find_all_string_submatch_n", "regex.replace", "glob.match", "glob.quote_meta",
		},
		{
			"strings.any_prefix_match", "strings.any_suffix_match", "concat", "format_int", "indexof", "indexof_n", "substring",
			"lower", "upper", "contains", "strings.count", "startswith", "endswith", "split", "strings.split_n", "replace",
			"strings.replace_n", "trim", "trim_left", "trim_prefix", "trim_right", "trim_suffix", "trim_space", "sprintf",
			"strings.reverse", "internal.template_string",
		},
		{
			"json.marshal", "json.unmarshal", "json.is_valid", "yaml.marshal", "yaml.unmarshal", "yaml.is_valid",
			"base64.encode", "base64.decode", "base64.is_valid", "base64url.encode", "base64url.encode_no_pad", "base64url.decode",
			"urlquery.decode", "urlquery.encode", "urlquery.encode_object", "urlquery.decode_object", "uri.parse", "uri.is_valid",
			"hex.encode", "hex.decode",
		},
		{
			"object.union", "object.union_n", "object.remove", "object.filter", "object.get", "object.keys", "object.subset",
			"json.filter", "json.remove", "json.patch", "walk", "graph.reachable",
		},
		{
			"time.now_ns", "time.parse_ns", "time.parse_rfc3339_ns", "time.parse_duration_ns", "time.format", "time.date",
			"time.clock", "time.weekday", "time.add_date", "time.diff",
		},
		{
			"crypto.md5", "crypto.sha1", "crypto.sha256", "crypto.hmac.md5", "crypto.hmac.sha1", "crypto.hmac.sha256",
			"crypto.hmac.sha512", "crypto.hmac.equal",
		},
		{"is_number", "is_string", "is_boolean", "is_array", "is_set", "is_object", "is_null", "type_name"},
		{"net.cidr_overlap", "net.cidr_intersects", "net.cidr_contains", "net.cidr_merge", "net.cidr_is_valid"},
		{"units.parse", "units.parse_bytes", "uuid.parse", "semver.is_valid", "semver.compare"},
		{"rego.metadata.chain", "rego.metadata.rule"},
		// The compiler removes calls of print.
		{"print"},
	} {
		for _, name := range names {
			allowed[name] = true
		}
	}
}

// Builtins returns the names of the builtins that a policy can call, and those that OPA
// has and a policy cannot call, with the reason.
func Builtins() (available []string, taken map[string]string) {
	return slices.Sorted(maps.Keys(allowed)), maps.Clone(takenAway)
}

// capabilities are OPA's, without the builtins that were taken away.
func capabilities(version string) *ast.Capabilities {
	capable := ast.CapabilitiesForThisVersion(ast.CapabilitiesRegoVersion(regoVersion(version)))
	capable.Builtins = slices.DeleteFunc(slices.Clone(capable.Builtins), func(builtin *ast.Builtin) bool {
		return !allowed[builtin.Name]
	})
	// An empty list is none; nil would be all.
	capable.AllowNet = []string{}
	return capable
}
