package mask

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/url"
	"strings"
	"testing"
)

// pieces is a body that arrives in parts of the sizes in cuts.
type pieces struct {
	data []byte
	cuts []byte
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := len(p.data)
	if len(p.cuts) > 0 {
		n, p.cuts = min(int(p.cuts[0])%17+1, n), p.cuts[1:]
	}
	n = copy(b, p.data[:n])
	p.data = p.data[n:]
	return n, nil
}

func (p *pieces) Close() error { return nil }

// masked is a simple and slow implementation of masking.
func masked(data []byte, forms [][]byte) []byte {
	out := bytes.Clone(data)
	for _, f := range forms {
		for at := range data {
			if bytes.HasPrefix(data[at:], f) {
				for n := range f {
					out[at+n] = maskByte
				}
			}
		}
	}
	return out
}

func FuzzMask(f *testing.F) {
	f.Add([]byte("you sent s3cret-value, thanks"), "s3cret-value", "", []byte{3, 1, 2})
	f.Add([]byte("aaaaaaaaaaaaaaab"), "aaaaaab", "aaaaaaa", []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte(base64.StdEncoding.EncodeToString([]byte("user:p&ss<w>rd"))), "p&ss<w>rd", "user:p", []byte{5, 5, 5})
	f.Add([]byte("abcabcabcabdabcabcabd"), "abcabcabd", "bcabda", []byte{1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, data []byte, a, b string, cuts []byte) {
		if len(data) > 1<<12 || len(a)+len(b) > 1<<8 {
			t.Skip()
		}
		forms := append(Forms(a), Forms(b)...)
		got, err := io.ReadAll(NewReader(&pieces{data, cuts}, forms))
		if err != nil {
			t.Fatal(err)
		}
		want := masked(data, forms)
		if len(got) != len(want) {
			t.Fatalf("%d bytes of %d", len(got), len(want))
		}
		if len(cuts) == 0 && !bytes.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		// A cut may release the first bytes of a form, but no more.
		shown := 0
		for i := range got {
			switch {
			case got[i] == want[i]:
				shown = 0
			case want[i] == maskByte && got[i] == data[i]:
				if shown++; shown > 3 {
					t.Fatalf("%q shows more than a few bytes of a form, want %q", got, want)
				}
			default:
				t.Fatalf("got %q, want %q", got, want)
			}
		}
	})
}

func TestMaskHoldsNothingBackForLong(t *testing.T) {
	m := masker{forms: Forms("data-secret-value")}
	for _, part := range []string{"data: x\n\nda", "dat", "end d"} {
		if got := string(m.next([]byte(part), false)); got != part {
			t.Errorf("%q of %q goes on", got, part)
		}
	}
	if got := string(m.next([]byte("ata-sec"), false)); got != "" {
		t.Errorf("%q of a value goes on", got)
	}
	if got := string(m.next([]byte("ret-value."), false)); got != strings.Repeat("*", len("ata-secret-value"))+"." {
		t.Errorf("%q", got)
	}
	if got := string(m.next([]byte("data-secr"), true)); got != "data-secr" {
		t.Errorf("the end is %q", got)
	}
}

func TestForms(t *testing.T) {
	const v = `p/s+s"w<ö>rd&é`
	for name, text := range map[string]string{
		"plain": v, "query": url.QueryEscape(v), "path": url.PathEscape(v), "hex": hex.EncodeToString([]byte(v)),
		"base64": base64.StdEncoding.EncodeToString([]byte(v)), "url": base64.RawURLEncoding.EncodeToString([]byte("u" + v)),
		"json": `p/s+s\"w<ö>rd&é`, "json of browsers": `p\/s+s\"w<ö>rd&é`, "json of go": `p/s+s\"w\u003cö\u003erd\u0026é`, "html": "p/s+s&#34;w&lt;ö&gt;rd&amp;é",
	} {
		if got := Text("x"+text+"y", Forms(v)); strings.Count(got, "*") < len(text)-4 {
			t.Errorf("%s: %q", name, got)
		}
	}
	if forms := Forms("short"); len(forms) != 0 {
		t.Errorf("%q is looked for", forms)
	}
}

func BenchmarkMask(b *testing.B) {
	m := masker{forms: Forms("sk-live-0123456789abcdefghijklmnopqrstuv")}
	part := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog. "), 1<<10)[:readSize]
	b.SetBytes(readSize)
	for b.Loop() {
		m.next(part, false)
	}
}
