package httpio

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/engi-dev/engi/internal/engi"
)

func TestLimitValues(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"few":                     {`{"a":[1,{"b":2}]}`, true},
		"a list":                  {"[" + strings.Repeat("0,", MaxValues) + "0]", false},
		"as many as there may be": {"[" + strings.Repeat("0,", MaxValues-1) + "0]", true},
		"members":                 {"{" + strings.Repeat(`"":0,`, MaxValues/2+1) + "}", false},
		"nesting":                 {strings.Repeat("[", MaxValues+1), false},
		"a text":                  {`{"a":"` + strings.Repeat(`,\"[{`, MaxValues) + `"}`, true},
		"a text that ends":        {`{"a":"\\",` + strings.Repeat(",", MaxValues), false},
	} {
		for _, r := range []io.Reader{strings.NewReader(c.text), iotest.OneByteReader(strings.NewReader(c.text))} {
			b, err := io.ReadAll(LimitValues(r))
			if c.ok && (err != nil || string(b) != c.text) || !c.ok && (!engi.Is(err, engi.Invalid)) {
				t.Errorf("%s: %d bytes, %v", name, len(b), err)
			}
		}
	}
}
