package screen_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/operator/internal/screen"
)

func TestWhatWasPrintedBecomesPlainLinesHoweverItIsCut(t *testing.T) {
	for name, test := range map[string]struct {
		printed string
		want    []string
	}{
		"colours in a word":              {"pass\x1b[31mwo\x1b[0mrd\r\n", []string{"password"}},
		"a title":                        {"\x1b]0;root@web\x07# id\r\n", []string{"# id"}},
		"a title that ends otherwise":    {"\x1b]0;root@web\x1b\\# id\n", []string{"# id"}},
		"a title that a colour ends":     {"\x1b]0;x\x1b[0mkey\n", []string{"key"}},
		"a title that a reset ends":      {"\x1b]0;x\x1bckey\n", []string{"key"}},
		"a title that is cancelled":      {"\x1b]0;x\x18key\n\x1bPx\x1akey\n", []string{"key", "key"}},
		"a colour that is cancelled":     {"\x1b[1\x18key\n\x1b[1\x1b[mkey\n", []string{"key", "key"}},
		"a charset":                      {"\x1b(Bplain\n", []string{"plain"}},
		"what was typed and corrected":   {"lz\b \bs é\b\xc3\xa8\n", []string{"ls è"}},
		"a bar that goes on in its line": {"10%\r20%\rdone\n", []string{"10%", "20%", "done"}},
		"a line without an end":          {"last", []string{"last"}},
		"bytes that are no text":         {"a\x00\xffb\n", []string{"a\uFFFDb"}},
	} {
		for _, size := range []int{1, 2, 1 << 10} {
			var got []string
			text := &screen.Text{Line: func(line string) { got = append(got, line) }}
			for piece := range slices.Chunk([]byte(test.printed), size) {
				text.Write(piece)
			}
			if text.Flush(); !slices.Equal(got, test.want) {
				t.Errorf("%s, in pieces of %d: %q", name, size, got)
			}
		}
	}
}

func TestALineThatIsTooLongGoesOnWithItsEnd(t *testing.T) {
	var lines []string
	text := &screen.Text{Overlap: 3, Line: func(line string) { lines = append(lines, line) }}
	text.Write([]byte(strings.Repeat("x", screen.MaxLine-1) + "abcd"))
	text.Flush()
	if len(lines) != 2 || len(lines[0]) != screen.MaxLine || lines[1] != "xxabcd" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}
