package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func TestMirrorSection(t *testing.T) {
	c, _, err := Load(From{File: write(t, `
[mirror]
size = "1GiB"
fresh = "1m"
offline = true
npm = "https://artifacts.example.com/npm/"
pypi = "http://10.1.2.3:8080/simple"
debian_security = "https://deb.example.com/security"
maven = "off"
hosts = ["files.internal:443"]
`)})
	if err != nil {
		t.Fatal(err)
	}
	o := c.Mirror.Options()
	want := map[string]string{"npm": "https://artifacts.example.com/npm/", "pypi": "http://10.1.2.3:8080/simple", "go": "", "crates": "", "debian": "", "debian-security": "https://deb.example.com/security", "maven": "off"}
	if d := cmp.Diff(want, o.Upstreams); d != "" || o.Size != 1<<30 || o.Fresh != time.Minute || !o.Offline || len(o.Trusted) != 1 {
		t.Errorf("%+v %s", o, d)
	}
	for _, file := range []string{
		"[mirror]\nnpm = 'artifacts.example.com'", "[mirror]\ngo = 'https://ann:password@artifacts.example.com'", "[mirror]\ncrates = 'ftp://x'", "[mirror]\npypi = 'https://x/?a=b'",
		"[mirror]\nsize = '1KiB'", "[mirror]\nfresh = '0s'", "[mirror]\nhosts = ['x']",
	} {
		if _, _, err := Load(From{File: write(t, file)}); !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" || strings.Contains(err.Error(), "password@") {
			t.Errorf("%q: %v", file, err)
		}
	}
}
