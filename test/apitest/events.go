package apitest

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/memory"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/webhook"
)

// functions starts the real functions on a database: echo, on engi/debug/echo,
// returns the event's data in one step; fail, on engi/debug/fail, fails; wait, on
// engi/debug/wait, lasts until it is cancelled. Webhooks are real, too, and may have any
// address. The caller must call stop.
func functions(db *store.DB, approvals engi.Approvals) (f engi.Functions, w engi.Webhooks, stop func()) {
	hooks, err := webhook.Open(context.Background(), webhook.Options{
		Store: store.Webhooks(db), Events: store.Events(db), Client: &http.Client{}, Seal: plain{},
		Formats: map[string]engi.WebhookFormat{engi.WebhookApproval: webhook.NewApprovalFormat(approvals)},
	})
	if err != nil {
		panic(err)
	}
	durable := func(x engi.Function, run func(ctx context.Context, r *function.Run) (any, error)) function.Function {
		return function.Function{Function: x, Run: func(ctx context.Context, r *function.Run) (any, error) {
			return function.Step(ctx, r, x.Name, func(ctx context.Context) (any, error) { return run(ctx, r) })
		}}
	}
	runner, err := function.New(function.Options{Store: store.Functions(db), Events: store.Events(db), Engine: &memory.Engine{}, Source: hooks, Functions: []function.Function{
		durable(engi.Function{Name: "echo", Description: "says it again", Event: "engi/debug/echo", Retries: 3}, func(_ context.Context, r *function.Run) (any, error) {
			return r.Event.Data, nil
		}),
		durable(engi.Function{Name: "fail", Event: "engi/debug/fail", Concurrency: 2, PerOwner: 1, Timeout: time.Minute}, func(context.Context, *function.Run) (any, error) {
			return nil, engi.Errorf(engi.NotFound, "there is no sandbox").WithRemedy("send the ID of one that lives")
		}),
		durable(engi.Function{Name: "wait", Event: "engi/debug/wait", Cron: "0 4 * * *", Input: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, r *function.Run) (any, error) {
			select {
			case <-r.Cancelled():
			case <-ctx.Done():
			}
			return nil, engi.Errorf(engi.Expired, "enough")
		}),
	}})
	if err != nil {
		panic(err)
	}
	hooks.Bind(runner)
	ctx, cancel := context.WithCancel(context.Background())
	ready, gone := make(chan struct{}), make(chan error, 1)
	go func() { gone <- runner.Serve(ctx, func() { close(ready) }) }()
	<-ready
	return runner, hooks, func() {
		cancel()
		if err := <-gone; err != nil {
			panic(err)
		}
	}
}

// plain is a sealer that leaves values in plain text.
type plain struct{}

func (plain) Seal(_, value string) []byte                    { return []byte(value) }
func (plain) Unseal(_ string, sealed []byte) (string, error) { return string(sealed), nil }
