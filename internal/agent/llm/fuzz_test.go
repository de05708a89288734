package llm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzAnswers reads anything as the answer of every provider.
func FuzzAnswers(f *testing.F) {
	files, err := filepath.Glob("testdata/wire/*.*")
	recorded, also := filepath.Glob("testdata/wire/recorded/*.*")
	if files = append(files, recorded...); err != nil || also != nil || len(recorded) == 0 {
		f.Fatal(files, err, also)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for dialect, format := range formats {
			told := 0
			a := &answer{source: source{name: "m"}, ids: "call_", out: func(d Delta) error {
				told += len(d.Text) + len(d.Thought) + len(d.Arguments)
				return nil
			}}
			err := events(bytes.NewReader(raw), func(data []byte) (bool, error) {
				err := format.event(data, a)
				return a.done, err
			})
			if r, e := a.reply(); err == nil && e == nil {
				if n := len(r.Message.Text) + len(r.Message.Thought); told < n {
					t.Errorf("%s: told %d of %d bytes", dialect, told, n)
				}
				for _, c := range r.Message.Calls {
					if c.ID == "" || c.Arguments == "" {
						t.Errorf("%s: call %+v", dialect, c)
					}
				}
			}
			if err := format.whole(raw, &answer{source: source{name: "m"}}); err != nil {
				continue
			}
		}
	})
}
