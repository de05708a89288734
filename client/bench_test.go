package client_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/apitest"
)

// These measure the way through client, surface and guest protocol, with the
// guest in this process.

func benchSandbox(b *testing.B) (*client.Client, string) {
	w, srv := apitest.Serve(b, nil)
	c := client.New(srv.URL, w.User)
	box, err := c.CreateSandbox(b.Context(), v1.SandboxRequest{})
	if err != nil {
		b.Fatal(err)
	}
	return c, box.ID
}

func BenchmarkUpload(b *testing.B) {
	c, box := benchSandbox(b)
	data := bytes.Repeat([]byte("0123456789abcdef"), 4<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := c.Files(box).Write(b.Context(), "/workspace/f", bytes.NewReader(data), client.WithSize(int64(len(data)))); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDownload(b *testing.B) {
	c, box := benchSandbox(b)
	data := bytes.Repeat([]byte("0123456789abcdef"), 4<<20)
	if _, err := c.Files(box).Write(b.Context(), "/workspace/f", bytes.NewReader(data)); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	buf := make([]byte, 256<<10)
	for b.Loop() {
		f, err := c.Files(box).Open(b.Context(), "/workspace/f")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

func BenchmarkExec(b *testing.B) {
	c, box := benchSandbox(b)
	for b.Loop() {
		if _, err := c.Exec(b.Context(), box, v1.ProcessRequest{Args: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
	}
}
