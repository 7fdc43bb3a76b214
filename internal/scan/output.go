package scan

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/admitkit/admitkit/internal/offline"
)

// Formats are the names of the formats in which a result can be written.
func Formats() []string { return slices.Sorted(maps.Keys(formats)) }

var formats = map[string]func(*Result, io.Writer, string) error{
	"table": (*Result).table, "json": (*Result).json, "junit": (*Result).junit, "sarif": (*Result).sarif,
}

// Write writes the result in a format, as that of a program.
func (r *Result) Write(w io.Writer, format, program string) error {
	return formats[format](r, w, program)
}

// shown is how many findings the table shows for each extension.
const shown = 10

// table writes the result for people.
func (r *Result) table(out io.Writer, _ string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var lines strings.Builder
	lines.WriteString("EXTENSION\tMODE\tNAMESPACE\tOBJECTS\tDENIED\tSTUCK\tCHANGED\tFAILED\tEXEMPTED\n")
	for _, row := range r.Rows {
		namespace := row.Namespace
		if namespace == "" {
			namespace = "-"
		}
		fmt.Fprintf(&lines, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", row.Extension, row.Mode, namespace, row.Objects, row.Denied, row.Stuck, row.Changed, row.Failed, row.Exempted)
	}
	if _, err := io.WriteString(w, lines.String()); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	var text strings.Builder
	for _, name := range r.order {
		r.writeFindings(&text, name)
	}
	if r.More > 0 {
		fmt.Fprintf(&text, "\n%d more findings are only counted; see --findings\n", r.More)
	}
	for i, l := range r.Left {
		if i == 0 {
			text.WriteString("\nNot scanned:\n")
		}
		fmt.Fprintf(&text, "  %s: %s\n", l.Extension, l.Reason)
	}
	if len(r.ByUser) > 0 {
		findings := 0
		for _, row := range r.Rows {
			findings += row.ByUser
		}
		fmt.Fprintf(&text, "\n%s: the decision depends on the user, here an administrator, and %d findings are not counted for it; set --user and --groups\n", strings.Join(r.ByUser, ", "), findings)
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// writeFindings writes those of an extension, the first of each outcome.
func (r *Result) writeFindings(text *strings.Builder, extension string) {
	count := 0
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Extension != extension {
			continue
		}
		if count++; count > shown {
			continue
		}
		if count == 1 {
			fmt.Fprintf(text, "\n%s:\n", extension)
		}
		about := joined(f.Outcomes)
		if f.ByUser {
			about += ", by the user"
		}
		fmt.Fprintf(text, "  %s %s: %s\n", offline.OneLine(f.Object()), about, offline.OneLine(f.Message))
	}
	if count > shown {
		fmt.Fprintf(text, "  and %d more; -o json has them\n", count-shown)
	}
}

func joined(outcomes []Outcome) string {
	var texts []string
	for _, o := range outcomes {
		texts = append(texts, string(o))
	}
	return strings.Join(texts, ", ")
}

func (r *Result) json(w io.Writer, _ string) error { return encode(w, r) }

func encode(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// The parts of a JUnit report: https://github.com/testmoapp/junitxml.
type (
	testSuites struct {
		XMLName  xml.Name    `xml:"testsuites"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Suites   []testSuite `xml:"testsuite"`
	}
	testSuite struct {
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Errors   int        `xml:"errors,attr"`
		Cases    []testCase `xml:"testcase"`
	}
	testCase struct {
		Class   string   `xml:"classname,attr"`
		Name    string   `xml:"name,attr"`
		Failure *problem `xml:"failure,omitempty"`
		Error   *problem `xml:"error,omitempty"`
		Output  string   `xml:"system-out,omitempty"`
	}
	problem struct {
		Type    string `xml:"type,attr"`
		Message string `xml:"message,attr"`
	}
)

// junit writes a suite for each extension. Its tests are the namespaces without a finding,
// and the findings. Each reason why the scan is incomplete is an error.
func (r *Result) junit(w io.Writer, program string) error {
	all := testSuites{Name: program}
	for _, name := range r.order {
		suite := testSuite{Name: name}
		found := map[string]bool{} // namespaces
		for i := range r.Findings {
			f := &r.Findings[i]
			if f.Extension != name {
				continue
			}
			found[f.Namespace] = true
			test := testCase{Class: name, Name: f.Object()}
			p := &problem{joined(f.Outcomes), f.Message}
			switch f.level() {
			case "error":
				test.Failure = p
				suite.Failures++
			case "warning":
				test.Error = p
				suite.Errors++
			default:
				test.Output = p.Type + ": " + p.Message
			}
			suite.Cases = append(suite.Cases, test)
		}
		for _, row := range r.Rows {
			if row.Extension == name && !found[row.Namespace] {
				suite.add(row)
			}
		}
		suite.Tests = len(suite.Cases)
		all.add(suite)
	}
	if len(r.Incomplete) > 0 {
		suite := testSuite{Name: "scan"}
		for _, reason := range r.Incomplete {
			suite.Cases = append(suite.Cases, testCase{Class: "scan", Name: reason, Error: &problem{"incomplete", reason}})
		}
		suite.Tests, suite.Errors = len(suite.Cases), len(suite.Cases)
		all.add(suite)
	}
	text, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, text)
	return err
}

// add adds the test that a namespace is whose findings, if there are some, are only counted.
func (s *testSuite) add(row *Row) {
	test := testCase{Class: row.Extension, Name: strconv.Itoa(row.Objects) + " objects" + in(row.Namespace)}
	if row.Denied+row.Stuck+row.Failed > 0 {
		test.Failure = &problem{"counted", fmt.Sprintf("%d denied, %d stuck, %d failed, which are only counted; see --findings", row.Denied, row.Stuck, row.Failed)}
		s.Failures++
	}
	s.Cases = append(s.Cases, test)
}

func (t *testSuites) add(s testSuite) {
	t.Suites = append(t.Suites, s)
	t.Tests, t.Failures, t.Errors = t.Tests+s.Tests, t.Failures+s.Failures, t.Errors+s.Errors
}

// level is how bad a finding is, in the words of SARIF.
func (f *Finding) level() string {
	if f.ByUser {
		return "note"
	}
	switch f.Outcomes[0] {
	case Stuck, Denied:
		return "error"
	case Failed:
		return "warning"
	case Changed:
	}
	return "note"
}

// The parts of a SARIF log: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool        sarifTool         `json:"tool"`
		Invocations []sarifInvocation `json:"invocations"`
		Results     []sarifResult     `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name  string      `json:"name"`
		Rules []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID string `json:"id"`
	}
	sarifInvocation struct {
		Successful    bool                `json:"executionSuccessful"`
		Notifications []sarifNotification `json:"toolExecutionNotifications,omitempty"`
	}
	sarifNotification struct {
		Level   string       `json:"level"`
		Message sarifMessage `json:"message"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID       string            `json:"ruleId"`
		Level        string            `json:"level"`
		Message      sarifMessage      `json:"message"`
		Locations    []sarifLocation   `json:"locations"`
		Fingerprints map[string]string `json:"partialFingerprints"`
	}
	sarifLocation struct {
		Physical sarifPhysical  `json:"physicalLocation"`
		Logical  []sarifLogical `json:"logicalLocations"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifLogical struct {
		Name string `json:"fullyQualifiedName"`
		Kind string `json:"kind"`
	}
)

// sarif writes a rule for each extension. The place of an object is its path in the API.
func (r *Result) sarif(w io.Writer, program string) error {
	run := sarifRun{Tool: sarifTool{sarifDriver{Name: program, Rules: []sarifRule{}}}, Results: []sarifResult{}}
	for _, name := range r.order {
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{name})
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		at := path.Join(f.APIVersion, "namespaces", f.Namespace, f.Resource, f.Name)
		if f.Namespace == "" {
			at = path.Join(f.APIVersion, f.Resource, f.Name)
		}
		run.Results = append(run.Results, sarifResult{
			RuleID: f.Extension, Level: f.level(), Message: sarifMessage{joined(f.Outcomes) + ": " + f.Message},
			Locations:    []sarifLocation{{sarifPhysical{sarifArtifact{(&url.URL{Path: at}).String()}}, []sarifLogical{{f.Object(), "object"}}}},
			Fingerprints: map[string]string{"object/v1": f.Extension + " " + at},
		})
	}
	invocation := sarifInvocation{Successful: len(r.Incomplete) == 0}
	for _, reason := range r.Incomplete {
		invocation.Notifications = append(invocation.Notifications, sarifNotification{"error", sarifMessage{reason}})
	}
	run.Invocations = []sarifInvocation{invocation}
	return encode(w, sarifLog{"https://json.schemastore.org/sarif-2.1.0.json", "2.1.0", []sarifRun{run}})
}
