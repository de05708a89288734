package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
)

// Clients with the extension for tasks get a task for a long-running
// program. The task is the execution: it survives restarts, and any server can report
// its state.
const (
	tasksExtension = "io.modelcontextprotocol/tasks"
	// taskMeta holds the ID of the running execution in the result of a call.
	taskMeta     = "engi.dev/execution"
	taskPatience = 2 * time.Second // run time after which a program becomes a task
	taskInterval = time.Second     // interval at which clients should poll
)

// A taskResult is a task in the form of clients.
type taskResult struct {
	sdk.ResultBase
	Type    string    `json:"resultType"`
	ID      string    `json:"taskId,omitempty"`
	Status  string    `json:"status,omitempty"`
	Created time.Time `json:"createdAt,omitzero"`
	Updated time.Time `json:"lastUpdatedAt,omitzero"`
	TTL     any       `json:"ttlMs"` // nil: a task lives as long as its execution
	Poll    int64     `json:"pollIntervalMs,omitempty"`
	Result  any       `json:"result,omitempty"`
	Error   any       `json:"error,omitempty"`
}

// A taskAck is the answer to a request that changes a task.
type taskAck struct {
	sdk.ResultBase
	Type string `json:"resultType"`
}

// taskParams holds the parameters of requests about tasks.
type taskParams struct {
	sdk.ParamsBase
	ID string `json:"taskId"`
}

// knowsTasks reports whether the client of a request supports tasks.
func knowsTasks(req sdk.Request) bool {
	s, ok := req.GetSession().(*sdk.ServerSession)
	return ok && declaresTasks(s)
}

func declaresTasks(s *sdk.ServerSession) bool {
	p := s.InitializeParams()
	if p == nil || p.ProtocolVersion < statelessRevision || p.Capabilities == nil {
		return false
	}
	_, ok := p.Capabilities.Extensions[tasksExtension]
	return ok
}

// namesTask reports whether the header of a request about a task names the same task,
// so that a proxy that routes requests by headers routes this one correctly.
func (m message) namesTask(r *http.Request) bool {
	if len(m.calls) != 1 || !slices.Contains([]string{"tasks/get", "tasks/update", "tasks/cancel"}, m.calls[0].Method) {
		return true
	}
	var p taskParams
	return json.Unmarshal(m.calls[0].Params, &p) != nil || p.ID == r.Header.Get(nameHeader)
}

// addTasks adds the extension to a server.
func (s *Server) addTasks(server *sdk.Server, key engi.Key) {
	server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, req)
			if r, ok := res.(*sdk.CallToolResult); ok && err == nil && r.Meta[taskMeta] != nil {
				id, _ := r.Meta[taskMeta].(engi.ExecutionID)
				return s.task(ctx, key, id, "task")
			}
			return res, err
		}
	})
	about := func(method string, write bool, do func(ctx context.Context, id engi.ExecutionID) (sdk.Result, error)) {
		// This call fails only for methods that the protocol itself has.
		_ = sdk.AddReceivingCustomMethod(server, method, func(ctx context.Context, session *sdk.ServerSession, p *taskParams) (sdk.Result, error) {
			if !declaresTasks(session) {
				data, err := json.Marshal(map[string]any{"requiredCapabilities": map[string]any{"extensions": map[string]any{tasksExtension: struct{}{}}}})
				if err != nil {
					return nil, err
				}
				return nil, &jsonrpc.Error{Code: sdk.CodeMissingRequiredClientCapabilities, Message: "the client does not declare the extension " + tasksExtension, Data: data}
			}
			if s.opt.Services.Executions == nil {
				return nil, noTask
			}
			if err := key.May(engi.ScopeExecutions, write); err != nil {
				return nil, err
			}
			id, err := engi.ParseExecutionID(p.ID)
			if err != nil {
				return nil, noTask
			}
			res, err := do(ctx, id)
			if engi.Is(err, engi.NotFound) {
				return nil, noTask
			}
			if err != nil {
				return nil, missing("", err) // without internal details
			}
			return res, nil
		})
	}
	about("tasks/get", false, func(ctx context.Context, id engi.ExecutionID) (sdk.Result, error) {
		return s.task(ctx, key, id, "complete")
	})
	about("tasks/cancel", true, func(ctx context.Context, id engi.ExecutionID) (sdk.Result, error) {
		return &taskAck{Type: "complete"}, s.opt.Services.Executions.Cancel(ctx, key.Owner.Viewer(), id)
	})
	about("tasks/update", true, func(ctx context.Context, id engi.ExecutionID) (sdk.Result, error) {
		_, err := s.opt.Services.Executions.Get(ctx, key.Owner.Viewer(), id) // an execution never asks for input
		return &taskAck{Type: "complete"}, err
	})
}

var noTask = &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "there is no such task"}

// task returns an execution as a task.
func (s *Server) task(ctx context.Context, key engi.Key, id engi.ExecutionID, kind string) (*taskResult, error) {
	x, err := s.opt.Services.Executions.Get(ctx, key.Owner.Viewer(), id)
	if err != nil {
		return nil, err
	}
	t := &taskResult{Type: kind, ID: string(id), Status: "working", Created: x.Created, Updated: x.Created, Poll: taskInterval.Milliseconds()}
	for _, at := range []time.Time{x.Started, x.Ended} {
		if !at.IsZero() {
			t.Updated = at
		}
	}
	switch {
	case kind == "task" || x.State == engi.ExecutionQueued || x.State == engi.ExecutionRunning:
	case x.Result != nil && x.Result.Exit.Cause == engi.CauseCancelled:
		t.Status = "cancelled"
	default:
		r, err := s.opt.Services.ExecutionResult(ctx, x)
		if err != nil {
			r = tool.Failure(err)
		}
		t.Status, t.Result = "completed", resultOf(r)
	}
	return t, nil
}
