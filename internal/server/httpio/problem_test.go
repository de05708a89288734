package httpio

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

func TestEveryKindHasAStatus(t *testing.T) {
	seen := map[int]engi.Kind{}
	for _, k := range engi.Kinds() {
		if int(k) >= len(Statuses) || http.StatusText(Statuses[k]) == "" || Statuses[k] < 400 {
			t.Errorf("kind %s has no HTTP status", k)
			continue
		}
		if other, ok := seen[Statuses[k]]; ok {
			t.Errorf("kinds %s and %s share status %d", k, other, Statuses[k])
		}
		seen[Statuses[k]] = k
		if p := Describe(engi.Errorf(k, "x"), "req_1"); p.Kind != k.String() || p.Status != Statuses[k] || p.Remedy == "" || p.Title == "" {
			t.Errorf("problem of kind %s: %+v", k, p)
		}
	}
}

func TestProblems(t *testing.T) {
	full := engi.Errorf(engi.Exhausted, "the queue is full").WithRemedy("wait").WithRetry(engi.Retry{AfterMillis: 1500, Position: 12})
	for name, c := range map[string]struct {
		err  error
		want v1.Problem
	}{
		"exhausted, annotated": {
			fmt.Errorf("start: %w", full),
			v1.Problem{
				Type: "urn:engi:problem:exhausted", Title: "Too Many Requests", Status: 429, Detail: "start: the queue is full",
				Kind: "exhausted", Remedy: "wait", RequestID: "req_1", RetryAfter: v1.Duration(1500 * time.Millisecond), QueuePosition: 12,
			},
		},
		"internal texts stay here": {
			errors.New("dial 10.0.0.7: password hunter2"),
			v1.Problem{
				Type: "urn:engi:problem:internal", Title: "Internal Server Error", Status: 500, Detail: "an internal error; the log has it under this request ID",
				Kind: "internal", Remedy: engi.RemedyOf(engi.Errorf(engi.Internal, "")), RequestID: "req_1",
			},
		},
		"a status of its own": {
			Errorf(413, "send less", "too much"),
			v1.Problem{Type: "urn:engi:problem:invalid", Title: "Request Entity Too Large", Status: 413, Detail: "too much", Kind: "invalid", Remedy: "send less", RequestID: "req_1"},
		},
		"several faults": {
			Invalid([]v1.Fault{{Field: "a", Detail: "x"}, {Field: "b", Detail: "y"}}),
			v1.Problem{
				Type: "urn:engi:problem:invalid", Title: "Bad Request", Status: 400, Detail: "a: x (and 1 more)", Kind: "invalid",
				Remedy: "correct the request; /docs describes it", RequestID: "req_1", Faults: []v1.Fault{{Field: "a", Detail: "x"}, {Field: "b", Detail: "y"}},
			},
		},
	} {
		if d := cmp.Diff(c.want, Describe(c.err, "req_1")); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
