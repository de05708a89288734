package rest_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// instant runs nothing, so that only the surface is measured.
type instant struct{ engi.Executions }

var answered = engi.Execution{
	ID: engi.NewExecutionID(), Owner: "ann", State: engi.ExecutionDone, Language: engi.Python, Template: "base", Sandbox: engi.NewSandboxID(),
	Result: &engi.Result{Exit: engi.Exit{Cause: engi.CauseExited}, Stdout: []byte("42\n"), Tier: engi.TierGVisor},
}

func (instant) Start(context.Context, engi.ExecutionSpec) (engi.Execution, error) {
	return answered, nil
}
func (instant) Wait(context.Context, engi.Viewer, engi.ExecutionID) (engi.Execution, error) {
	return answered, nil
}

// BenchmarkExecute measures what the surface adds to a run: authentication,
// validation, JSON, log and metrics; net adds a connection on loopback.
func BenchmarkExecute(b *testing.B) {
	w := apitest.New(func(o *apitest.Options) { o.Executions = instant{} })
	defer w.Close()
	body := func(code string) string {
		out, err := json.Marshal(map[string]any{"language": "python", "code": code})
		if err != nil {
			b.Fatal(err)
		}
		return string(out)
	}
	line := "    total += values[index] * 2  # \"sum\"\n"
	for _, c := range []struct{ name, body string }{
		{"small", body("print(6*7)")},
		{"100KiB", body(strings.Repeat(line, 100<<10/len(line)))},
		{"1MiB", body(strings.Repeat(line, 1<<20/len(line)))},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest("POST", "http://localhost/v1/executions", strings.NewReader(c.body))
				r.Header.Set("Authorization", "Bearer "+w.User)
				r.Header.Set("Content-Type", "application/json")
				rec := httptest.NewRecorder()
				w.Handler.ServeHTTP(rec, r)
				if rec.Code != 200 {
					b.Fatal(rec.Body)
				}
			}
		})
	}
	b.Run("small net", func(b *testing.B) {
		srv := httptest.NewServer(w.Handler)
		defer srv.Close()
		for b.Loop() {
			r, _ := http.NewRequest("POST", srv.URL+"/v1/executions", strings.NewReader(body("print(6*7)")))
			r.Header.Set("Authorization", "Bearer "+w.User)
			resp, err := http.DefaultClient.Do(r)
			if err != nil || resp.StatusCode != 200 {
				b.Fatal(err, resp)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				b.Fatal(err)
			}
			resp.Body.Close()
		}
	})
}
