package rego

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"
)

func TestAPolicysOwnTestsRun(t *testing.T) {
	policy := &fstest.MapFile{Data: []byte("package controller\n\nopen if time.now_ns() > 10\n")}
	tests := func(body string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("package controller_test\n\nimport data.controller\n\n" + body)}
	}
	for name, test := range map[string]struct {
		files fstest.MapFS
		run   TestOptions
		want  []string
		err   error
	}{
		"all pass": {
			fstest.MapFS{"a.rego": policy, "sub/a_test.rego": tests("test_open if controller.open with time.now_ns as 11\n\ntest_closed if not controller.open with time.now_ns as 9")},
			TestOptions{},
			[]string{"pass  data.controller_test.test_open", "pass  data.controller_test.test_closed", "2 passed, 0 failed"},
			nil,
		},
		"one fails, with its line and what it printed": {
			fstest.MapFS{"a.rego": policy, "a_test.rego": tests("test_open if {\n\tprint(\"now\", 9)\n\tcontroller.open with time.now_ns as 9\n}\n\ntest_true if true")},
			TestOptions{},
			[]string{"FAIL  data.controller_test.test_open\n      a_test.rego:7: not true: controller.open with time.now_ns as 9\n      print: now 9\n", "1 passed, 1 failed"},
			ErrTestsFailed,
		},
		"one has an error": {
			fstest.MapFS{"a.rego": policy, "a_test.rego": tests("x := 1\n\nx := 2\n\ntest_x if x == 1")},
			TestOptions{},
			[]string{"FAIL  data.controller_test.test_x\n      a_test.rego:9: "},
			ErrTestsFailed,
		},
		"some are chosen": {
			fstest.MapFS{"a.rego": policy, "a_test.rego": tests("test_a if true\n\ntest_b if false")},
			TestOptions{Run: "test_a"},
			[]string{"pass  data.controller_test.test_a", "1 passed, 0 failed"},
			nil,
		},
		"none are chosen": {
			fstest.MapFS{"a.rego": policy, "a_test.rego": tests("test_a if true")}, TestOptions{Run: "test_c"}, nil, ErrNoTests,
		},
		"there are none":     {fstest.MapFS{"a.rego": policy}, TestOptions{}, nil, ErrNoTests},
		"there is no policy": {fstest.MapFS{"a.txt": policy}, TestOptions{}, nil, ErrNoTests},
		"one is not written yet": {
			fstest.MapFS{"a_test.rego": tests("todo_test_a if false\n\ntest_b if true")}, TestOptions{}, []string{"skip  data.controller_test.todo_test_a"}, nil,
		},
		"in v0": {
			fstest.MapFS{"a.rego": {Data: []byte("package controller\n\nopen { time.now_ns() > 10 }\n\ntest_open { open with time.now_ns as 11 }")}},
			TestOptions{Version: V0},
			[]string{"pass  data.controller.test_open"},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := Test(t.Context(), &out, test.files, test.run)
			if !errors.Is(err, test.err) || test.err == nil && err != nil {
				t.Errorf("got %v, want %v", err, test.err)
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("got\n%s\nwhich has no\n%s", &out, want)
				}
			}
		})
	}
}

func TestFilesThatCannotBeTestedAreNamed(t *testing.T) {
	for name, test := range map[string]struct {
		file fstest.MapFile
		run  TestOptions
		want string
	}{
		"a mistake":                     {fstest.MapFile{Data: []byte("package a\n\ntest_x if {")}, TestOptions{}, "a.rego:3:"},
		"a variable that nobody has":    {fstest.MapFile{Data: []byte("package a\n\ntest_x if y")}, TestOptions{}, "a.rego:3:"},
		"a builtin that was taken away": {fstest.MapFile{Data: []byte("package a\n\ntest_x if opa.runtime()")}, TestOptions{}, "a.rego:3:11: undefined function opa.runtime: a hook cannot call it"},
		"the older language":            {fstest.MapFile{Data: []byte("package a\n\ntest_x { true }")}, TestOptions{}, "set version: v0"},
		"another version":               {fstest.MapFile{Data: []byte("package a")}, TestOptions{Version: "1"}, `version: "1" is neither v0 nor v1`},
		"a file that is too long":       {fstest.MapFile{Data: make([]byte, MaxSourceBytes+1)}, TestOptions{}, "a.rego: it has more than 1048576 bytes"},
		"no regular expression":         {fstest.MapFile{Data: []byte("package a\n\ntest_x if true")}, TestOptions{Run: "("}, "error parsing regexp"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Test(t.Context(), &strings.Builder{}, fstest.MapFS{"a.rego": &test.file}, test.run)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}
