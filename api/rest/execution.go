package rest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

const (
	maxWait    = 60 * time.Second // of one long poll
	cancelTime = 10 * time.Second // to cancel a run whose caller left
	inlineSize = 1 << 20          // bytes of artifacts that travel with a result
)

type postExecution struct {
	Idempotency string `header:"Idempotency-Key" maxLength:"255" doc:"a repeated key returns the first execution instead of starting another; a run with a key goes on when its caller leaves"`
	LastEvent   string `header:"Last-Event-ID" doc:"with a stream and a repeated Idempotency-Key: the offset to come back to"`
}

type listExecutions struct {
	State  string `query:"state" enum:"queued,running,done,refused" doc:"only these"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"items of a page"`
	Cursor string `query:"cursor" doc:"next_cursor of the page before"`
}

type getExecution struct {
	ID   string `path:"id" doc:"of the execution"`
	Wait string `query:"wait" example:"30s" doc:"wait that long for the run to end; at most 60s"`
}

type watchExecution struct {
	ID        string `path:"id" doc:"of the execution"`
	Offset    int64  `query:"offset" minimum:"0" doc:"where to begin: the offset of the last event seen"`
	LastEvent string `header:"Last-Event-ID" doc:"the same, as browsers send it; goes before offset"`
}

type anExecution struct {
	ID string `path:"id" doc:"of the execution"`
}

type anArtifact struct {
	ID   string `path:"id" doc:"of the execution"`
	Path string `path:"path" doc:"of the artifact; slashes are not escaped"`
}

func (s *server) serveExecutions() {
	handle(s, s.opCreateExecution(), s.createExecution)
	handle(s, s.opListExecutions(), s.listExecutions)
	handle(s, s.opGetExecution(), s.getExecution)
	handle(s, s.opCancelExecution(), s.cancelExecution)
	handle(s, s.opWatchExecution(), s.watchExecution)
	handle(s, s.opGetArtifact(), s.getArtifact)
}

func (s *server) createExecution(w http.ResponseWriter, r *http.Request, in *postExecution) error {
	form, err := httpio.Negotiate(r, httpio.JSON, httpio.SSE, httpio.NDJSON)
	if err != nil {
		return err
	}
	from, err := lastEvent(in.LastEvent, 0)
	if err != nil {
		return err
	}
	q, err := decode[v1.ExecutionRequest](s, w, r)
	if err != nil {
		return err
	}
	who := callOf(r.Context()).key.Owner
	spec, err := specOf(who, in.Idempotency, q)
	if err != nil {
		return err
	}
	if err := s.checkAmount(spec.Program); err != nil {
		return err
	}
	x, err := s.executions.Start(r.Context(), spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/executions/"+string(x.ID))
	switch {
	case q.Async:
		return s.reply(w, http.StatusAccepted, executionOf(x))
	case form == httpio.JSON:
		return s.await(w, r, x.ID, in.Idempotency != "")
	default:
		return s.stream(w, r, form, x.ID, from)
	}
}

// checkAmount refuses more than the node takes, with the status that says so.
func (s *server) checkAmount(p engi.Program) error {
	const remedy = "put large data into the template, or let the program fetch it"
	total := int64(len(p.Stdin))
	for _, f := range p.Files {
		n := int64(len(f.Data))
		if s.maxCode > 0 && n > s.maxCode {
			return httpio.Errorf(http.StatusRequestEntityTooLarge, remedy, "file %.200q has %d bytes; this server takes %s at most", f.Path, n, v1.Bytes(s.maxCode))
		}
		total += n
	}
	if s.maxInput > 0 && total > s.maxInput {
		return httpio.Errorf(http.StatusRequestEntityTooLarge, remedy, "the program and its input have %d bytes; this server takes %s at most", total, v1.Bytes(s.maxInput))
	}
	return nil
}

// await answers with the run's result. If the caller leaves before it is
// there, nobody else will ask for it, unless the run was made to be asked for
// again.
func (s *server) await(w http.ResponseWriter, r *http.Request, id engi.ExecutionID, keep bool) error {
	ctx, cancel := s.waiting(r)
	defer cancel()
	viewer := callOf(r.Context()).viewer()
	x, err := s.executions.Wait(ctx, viewer, id)
	if err != nil {
		if s.gone(r) && !keep {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), cancelTime)
			defer cancel()
			if err := s.executions.Cancel(ctx, viewer, id); err != nil && engi.KindOf(err) != engi.NotFound {
				return engi.Errorf(engi.Internal, "cancel %s, whose caller left: %w", id, err)
			}
		}
		return whole(ctx, err)
	}
	return s.replyExecution(w, r, x)
}

// replyExecution answers with a record and small artifacts inside.
func (s *server) replyExecution(w http.ResponseWriter, r *http.Request, x engi.Execution) error {
	e := executionOf(x)
	s.inline(r.Context(), callOf(r.Context()).viewer(), &e, x)
	return s.reply(w, http.StatusOK, e)
}

// inline puts artifacts into e as long as they are small together. One that
// cannot be read has its URL to say why.
func (s *server) inline(ctx context.Context, viewer engi.Owner, e *v1.Execution, x engi.Execution) {
	if x.Result == nil {
		return
	}
	room := int64(inlineSize)
	for i, a := range x.Result.Artifacts {
		if a.Size > room {
			continue
		}
		f, err := s.executions.Artifact(ctx, viewer, x.ID, a.Path)
		if err != nil {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(f, a.Size+1))
		f.Close()
		if sum := sha256.Sum256(data); err != nil || int64(len(data)) != a.Size || hex.EncodeToString(sum[:]) != a.SHA256 {
			continue
		}
		e.Result.Artifacts[i].ContentBase64 = data
		room -= a.Size
	}
}

func (s *server) listExecutions(w http.ResponseWriter, r *http.Request, in *listExecutions) error {
	f := engi.ExecutionFilter{State: engi.ExecutionState(in.State), Limit: in.Limit}
	if in.Cursor != "" {
		before, err := engi.ParseExecutionID(in.Cursor)
		if err != nil {
			return httpio.Invalid([]v1.Fault{{Field: "query.cursor", Detail: "this is not a next_cursor of a page before"}})
		}
		f.Before = before
	}
	xs, err := s.executions.List(r.Context(), callOf(r.Context()).viewer(), f)
	if err != nil {
		return err
	}
	list := listOf(xs, summaryOf)
	if len(xs) == in.Limit {
		list.NextCursor = string(xs[len(xs)-1].ID)
	}
	return s.reply(w, http.StatusOK, list)
}

func (s *server) getExecution(w http.ResponseWriter, r *http.Request, in *getExecution) error {
	id, err := engi.ParseExecutionID(in.ID)
	if err != nil {
		return err
	}
	viewer := callOf(r.Context()).viewer()
	if in.Wait != "" {
		d, err := v1.ParseDuration(in.Wait)
		if err != nil {
			return httpio.Invalid([]v1.Fault{{Field: "query.wait", Detail: err.Error()}})
		}
		if err := s.waitFor(r, viewer, id, min(d.Std(), maxWait)); err != nil {
			return err
		}
	}
	x, err := s.executions.Get(r.Context(), viewer, id)
	if err != nil {
		return err
	}
	return s.replyExecution(w, r, x)
}

// waitFor returns when the run has ended or d has passed, whichever is first.
func (s *server) waitFor(r *http.Request, viewer engi.Owner, id engi.ExecutionID, d time.Duration) error {
	waiting, cancel := s.waiting(r)
	defer cancel()
	ctx, cancel := context.WithTimeout(waiting, d)
	defer cancel()
	_, err := s.executions.Wait(ctx, viewer, id)
	if err == nil || ctx.Err() != nil && waiting.Err() == nil {
		return nil
	}
	if waiting.Err() != nil {
		return whole(waiting, err)
	}
	// A refusal is the record's to tell; anything else Get reports again.
	return nil
}

func (s *server) cancelExecution(w http.ResponseWriter, r *http.Request, in *anExecution) error {
	id, err := engi.ParseExecutionID(in.ID)
	if err != nil {
		return err
	}
	if err := s.executions.Cancel(r.Context(), callOf(r.Context()).viewer(), id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) watchExecution(w http.ResponseWriter, r *http.Request, in *watchExecution) error {
	id, err := engi.ParseExecutionID(in.ID)
	if err != nil {
		return err
	}
	form, err := httpio.Negotiate(r, httpio.NDJSON, httpio.SSE)
	if err != nil {
		return err
	}
	from, err := lastEvent(in.LastEvent, in.Offset)
	if err != nil {
		return err
	}
	// What is not there, or not the caller's, is told before the stream begins.
	if _, err := s.executions.Get(r.Context(), callOf(r.Context()).viewer(), id); err != nil {
		return err
	}
	return s.stream(w, r, form, id, from)
}

// lastEvent reads a Last-Event-ID; an empty one is other.
func lastEvent(id string, other int64) (int64, error) {
	if id == "" {
		return other, nil
	}
	n, err := strconv.ParseUint(id, 10, 63)
	if err != nil {
		return 0, httpio.Invalid([]v1.Fault{{Field: "header.Last-Event-ID", Detail: "this is not the id of an event of a run: those are whole numbers"}})
	}
	return int64(n), nil
}

func (s *server) getArtifact(w http.ResponseWriter, r *http.Request, in *anArtifact) error {
	id, err := engi.ParseExecutionID(in.ID)
	if err != nil {
		return err
	}
	viewer := callOf(r.Context()).viewer()
	x, err := s.executions.Get(r.Context(), viewer, id)
	if err != nil {
		return err
	}
	a, err := artifactOf(x, in.Path)
	if err != nil {
		return err
	}
	f, err := s.executions.Artifact(r.Context(), viewer, id, in.Path)
	if err != nil {
		return err
	}
	defer f.Close()

	// Programs make these files, so no browser may take one for a page.
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", disposition(a.Path))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Content-Length", strconv.FormatInt(a.Size, 10))
	h.Set("ETag", `"`+a.SHA256+`"`)
	if r.Header.Get("If-None-Match") == `"`+a.SHA256+`"` {
		h.Del("Content-Length")
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	if r.Method == http.MethodHead {
		return nil
	}
	n, err := io.Copy(httpio.DeadlineWriter{W: w}, io.LimitReader(f, a.Size))
	if err == nil && n < a.Size {
		err = engi.Errorf(engi.Internal, "artifact %.80q of %s ends %d bytes early", a.Path, id, a.Size-n)
	}
	if s.gone(r) {
		return nil
	}
	return err
}

func artifactOf(x engi.Execution, name string) (engi.Artifact, error) {
	if x.Result == nil {
		return engi.Artifact{}, engi.Errorf(engi.NotFound, "%s has no artifacts yet: it is %s", x.ID, x.State).
			WithRemedy("wait until it is done")
	}
	for _, a := range x.Result.Artifacts {
		if a.Path == name {
			return a, nil
		}
	}
	return engi.Artifact{}, engi.Errorf(engi.NotFound, "%s left no artifact %.200q", x.ID, name).
		WithRemedy("the execution lists its artifacts")
}

func disposition(name string) string {
	if d := mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)}); d != "" {
		return d
	}
	return "attachment"
}

// reply answers with v.
func (s *server) reply(w http.ResponseWriter, status int, v any) error {
	return httpio.WriteJSON(w, status, "application/json", v)
}
