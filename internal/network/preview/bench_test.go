package preview

import (
	"io"
	"net/http"
	"testing"
)

// BenchmarkProxy measures the cost of the proxy: the same small request and large
// response, directly from the service and through the proxy.
func BenchmarkProxy(b *testing.B) {
	const size = 64 << 20
	service := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			_, _ = io.Copy(w, io.LimitReader(zeros{}, size))
			return
		}
		_, _ = io.WriteString(w, "hello\n")
	})
	f := newFixture(b, func(o *Options) { o.Rate = 1e9 })
	box := f.sandbox(service)
	for name, address := range map[string]string{"direct": "http://" + box.ports[3000], "through": f.http.URL} {
		for path, bytes := range map[string]int64{"/small": 0, "/large": size} {
			b.Run(name+path, func(b *testing.B) {
				b.SetBytes(bytes)
				for b.Loop() {
					r, err := http.NewRequestWithContext(b.Context(), "GET", address+path, nil)
					if err != nil {
						b.Fatal(err)
					}
					r.Host = box.host(3000)
					res, err := client.Do(r)
					if err != nil {
						b.Fatal(err)
					}
					n, err := io.Copy(io.Discard, res.Body)
					res.Body.Close()
					if err != nil || bytes > 0 && n != bytes {
						b.Fatal(n, err)
					}
				}
			})
		}
	}
}
