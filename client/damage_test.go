package client_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

// TestDamageIsNoticed downloads what does not match its hash.
func TestDamageIsNoticed(t *testing.T) {
	const crc, sha = "e3069283", "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"
	content := "123456789"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, sum := v1.HashHeader, sha
		if r.Header.Get(v1.WantHeader) == "crc32c" {
			name, sum = v1.CRCHeader, crc
		}
		w.Header().Set("Trailer", name)
		w.Header().Set(v1.SizeHeader, fmt.Sprint(len(content)))
		io.WriteString(w, content)
		w.Header().Set(name, sum)
	}))
	defer srv.Close()
	files := client.New(srv.URL, "key").Files("sbx")
	for _, opts := range [][]client.ReadOption{nil, {client.WithSHA256()}} {
		for _, content = range []string{"123456789", "123456780"} {
			f, err := files.Open(t.Context(), "/f", opts...)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(f)
			f.Close()
			if string(got) != content {
				t.Errorf("read %q, want %q", got, content)
			}
			if damaged := content != "123456789"; damaged != (err != nil) || damaged && !strings.Contains(err.Error(), "hash") {
				t.Errorf("%q with %d options: %v", content, len(opts), err)
			}
			if known := f.SHA256() != ""; known != (len(opts) > 0) || known && err == nil && f.SHA256() != sha {
				t.Errorf("%d options: SHA-256 %q", len(opts), f.SHA256())
			}
		}
	}
}
