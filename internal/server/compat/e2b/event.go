package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
)

// Types of the events that clients know.
const (
	lifeCreated      = "sandbox.lifecycle.created"
	lifeUpdated      = "sandbox.lifecycle.updated"
	lifeKilled       = "sandbox.lifecycle.killed"
	lifePaused       = "sandbox.lifecycle.paused"
	lifeResumed      = "sandbox.lifecycle.resumed"
	lifeCheckpointed = "sandbox.lifecycle.checkpointed"
)

var lifeTypes = []string{lifeCreated, lifeUpdated, lifeKilled, lifePaused, lifeResumed, lifeCheckpointed}

// entered returns the type of engi's event for a sandbox that enters state.
func entered(state engi.State) string { return engi.EventSandboxPrefix + string(state) }

// sources maps each type of E2B's events to the types of engi's events that it is made from.
var sources = map[string][]string{
	lifeCreated:      {entered(engi.Running)},
	lifeUpdated:      {engi.EventSandboxUpdated},
	lifeKilled:       {entered(engi.Stopping), entered(engi.Stopped)},
	lifePaused:       {entered(engi.Paused), entered(engi.Hibernating)},
	lifeResumed:      {entered(engi.Running)},
	lifeCheckpointed: {engi.EventSandboxSnapshotted},
}

// lifecycleEvent is an event in the form of E2B's clients.
type lifecycleEvent struct {
	Version     string    `json:"version"`
	ID          string    `json:"id"`
	Type        string    `json:"type"`
	Data        lifeData  `json:"eventData"`
	BuildID     string    `json:"sandboxBuildId"`
	ExecutionID string    `json:"sandboxExecutionId"`
	SandboxID   string    `json:"sandboxId"`
	TeamID      string    `json:"sandboxTeamId"`
	TemplateID  string    `json:"sandboxTemplateId"`
	Timestamp   time.Time `json:"timestamp"`
}

type lifeData struct {
	Metadata   map[string]string `json:"sandbox_metadata"`
	Execution  *lifeExecution    `json:"execution,omitempty"`
	SetTimeout *time.Time        `json:"set_timeout,omitempty"` // the new deadline
	Changed    []string          `json:"changed,omitempty"`     // other changed settings, named in engi's terms
	SnapshotID string            `json:"snapshot_id,omitempty"`
}

// lifeExecution is the time from the start of a sandbox to its pause or end.
type lifeExecution struct {
	StartedAt     time.Time `json:"started_at"`
	VCPUs         int       `json:"vcpu_count"`
	MemoryMB      int64     `json:"memory_mb"`
	ExecutionTime int64     `json:"execution_time"` // milliseconds
}

// sandboxData is the data of engi's events about sandboxes.
type sandboxData struct {
	From     engi.State        `json:"from"`
	Template string            `json:"template"`
	Metadata map[string]string `json:"metadata"`
	Deadline *time.Time        `json:"deadline"`
	Changed  []string          `json:"changed"`
	Snapshot string            `json:"snapshot_id"`
	Started  time.Time         `json:"started"` // zero for sandboxes that owners have not created, or that have never run
	VCPUs    float64           `json:"vcpus"`
	Memory   int64             `json:"memory"`
	Notes    map[string]string `json:"notes"`
}

// lifeType returns E2B's type of an event; "" if clients do not see it.
//
// A sandbox counts as paused as soon as it starts to hibernate, as it does in
// lists, and as killed as soon as it starts to stop. So each pause and each end
// is reported once, whatever states lead to it: a paused sandbox that hibernates
// stays paused, and a failed hibernation is followed by a resumption.
func lifeType(e engi.Event, from engi.State) string {
	switch e.Type {
	case entered(engi.Running):
		switch from {
		case "", engi.Pending, engi.Starting, engi.Ready:
			return lifeCreated
		case engi.Paused, engi.Hibernating, engi.Hibernated, engi.Resuming:
			return lifeResumed
		}
	case entered(engi.Paused), entered(engi.Hibernating):
		if from == engi.Running {
			return lifePaused
		}
	case entered(engi.Stopping), entered(engi.Stopped):
		switch from {
		case engi.Running, engi.Paused, engi.Hibernating, engi.Hibernated, engi.Resuming:
			return lifeKilled
		}
	case engi.EventSandboxUpdated:
		return lifeUpdated
	case engi.EventSandboxSnapshotted:
		return lifeCheckpointed
	}
	return ""
}

// lifecycleOf returns e in the form of E2B's clients; false if they do not see it.
// It uses only e itself, so that the result is the same at any time.
func lifecycleOf(e engi.Event) (lifecycleEvent, bool) {
	none := lifecycleEvent{}
	if !strings.HasPrefix(e.Type, engi.EventSandboxPrefix) || e.Replay != "" {
		return none, false
	}
	id, err := engi.ParseSandboxID(e.Subject)
	if err != nil {
		return none, false
	}
	var d sandboxData
	if err := json.Unmarshal(e.Data, &d); err != nil || d.Started.IsZero() || d.Notes[registry.NoteBuild] != "" {
		return none, false
	}
	kind := lifeType(e, d.From)
	if kind == "" {
		return none, false
	}
	v := lifecycleEvent{
		Version: "v2", ID: string(e.ID), Type: kind, SandboxID: id.Label(), TeamID: team(e.Owner), Timestamp: e.Time,
		TemplateID: d.Notes[registry.NoteTemplate], BuildID: d.Notes[registry.NoteFrom], ExecutionID: executionID(id, d.Started),
		Data: lifeData{Metadata: d.Metadata},
	}
	if v.TemplateID == "" {
		v.TemplateID = d.Template
	}
	if v.BuildID == "" { // not a build of E2B's
		v.BuildID = d.Template
	}
	if v.Data.Metadata == nil {
		v.Data.Metadata = map[string]string{}
	}
	switch kind {
	case lifePaused, lifeKilled:
		x := &lifeExecution{StartedAt: d.Started, VCPUs: cpus(d.VCPUs), MemoryMB: d.Memory >> 20}
		if d.From == engi.Running { // from other states, the earlier pause has reported it
			x.ExecutionTime = max(0, e.Time.Sub(d.Started).Milliseconds())
		}
		v.Data.Execution = x
	case lifeUpdated:
		for _, name := range d.Changed {
			if name == "deadline" {
				v.Data.SetTimeout = d.Deadline
			} else {
				v.Data.Changed = append(v.Data.Changed, name)
			}
		}
	case lifeCheckpointed:
		v.Data.SnapshotID = d.Snapshot
	}
	return v, true
}

// team returns the name that clients see for an owner.
func team(o engi.Owner) string {
	if o == "" {
		return "engi"
	}
	return string(o)
}

// executionID returns an ID for the time from a start of a sandbox to its next pause.
func executionID(id engi.SandboxID, started time.Time) string {
	b := sha256.Sum256(fmt.Appendf(nil, "%s %d", id, started.UnixNano()))
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// checkTypes reports Invalid unless all types are types of E2B.
func checkTypes(types []string) error {
	for _, t := range types {
		if !slices.Contains(lifeTypes, t) {
			return engi.Errorf(engi.Invalid, "there are no events of type %.60q: use some of %s", t, strings.Join(lifeTypes, ", "))
		}
	}
	return nil
}

// A lifecycleQuery selects events.
type lifecycleQuery struct {
	sandbox       engi.SandboxID // empty means all
	types         []string       // empty means all
	offset, limit int
	oldest        bool
}

func lifecycleQueryOf(q url.Values) (l lifecycleQuery, err error) {
	l.limit = 10
	for name, n := range map[string]*int{"offset": &l.offset, "limit": &l.limit} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		if *n, err = strconv.Atoi(text); err != nil {
			return l, engi.Errorf(engi.Invalid, "%s %.20q is not a number", name, text)
		}
	}
	if l.offset < 0 {
		return l, engi.Errorf(engi.Invalid, "offset %d is negative", l.offset)
	}
	if l.limit < 1 || l.limit > 100 {
		return l, engi.Errorf(engi.Invalid, "limit %d is not between 1 and 100", l.limit)
	}
	if text := q.Get("orderAsc"); text != "" {
		if l.oldest, err = strconv.ParseBool(text); err != nil {
			return l, engi.Errorf(engi.Invalid, "orderAsc %.20q is neither true nor false", text)
		}
	}
	for _, text := range q["types"] {
		for t := range strings.SplitSeq(text, ",") {
			if err := checkTypes([]string{t}); err != nil {
				return l, err
			}
			if !slices.Contains(l.types, t) {
				l.types = append(l.types, t)
			}
		}
	}
	return l, nil
}

// eventPage is the number of events read at a time. It is small because events may have large
// metadata.
const eventPage = 200

// lifecycleEvents returns the events that q selects among those viewer sees.
// Its time is linear in the offset plus the number of events of the same types that
// clients do not see, mainly those of executions' sandboxes.
func (s *Server) lifecycleEvents(ctx context.Context, viewer engi.Viewer, q lifecycleQuery) ([]lifecycleEvent, error) {
	f := engi.EventFilter{Subject: string(q.sandbox), Oldest: q.oldest}
	wanted := q.types
	if len(wanted) == 0 {
		wanted = lifeTypes
	}
	for _, t := range wanted {
		f.Types = append(f.Types, sources[t]...)
	}
	slices.Sort(f.Types)
	f.Types = slices.Compact(f.Types)
	f.Limit = min(q.offset, eventPage) + q.limit // usually enough for one read
	list := []lifecycleEvent{}
	for skip := q.offset; ; f.Limit = eventPage {
		events, err := s.Events.List(ctx, viewer, f)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			v, ok := lifecycleOf(e)
			switch {
			case !ok || !slices.Contains(wanted, v.Type):
			case skip > 0:
				skip--
			case len(list) < q.limit:
				list = append(list, v)
			}
		}
		if len(list) == q.limit || len(events) < f.Limit {
			return list, nil
		}
		if last := events[len(events)-1].Seq; q.oldest {
			f.After = last
		} else {
			f.Before = last
		}
	}
}

func (s *Server) serveEvents() {
	events := func(pattern string, f func(w http.ResponseWriter, r *http.Request, who caller, q lifecycleQuery) error) {
		s.handle(pattern, func(w http.ResponseWriter, r *http.Request, who caller) error {
			if s.Events == nil {
				return errNone("log of events: GET /sandboxes/{sandboxID}/logs tells of a sandbox that is there")
			}
			q, err := lifecycleQueryOf(r.URL.Query())
			if err != nil {
				return err
			}
			return f(w, r, who, q)
		})
	}
	tell := func(w http.ResponseWriter, r *http.Request, who caller, q lifecycleQuery) error {
		list, err := s.lifecycleEvents(r.Context(), who.viewer, q)
		if err != nil {
			return err
		}
		return respond(w, http.StatusOK, list)
	}
	events("GET /events/sandboxes", tell)
	events("GET /events/sandboxes/{id}", func(w http.ResponseWriter, r *http.Request, who caller, q lifecycleQuery) error {
		label, _, _ := strings.Cut(r.PathValue("id"), "-")
		var err error
		if q.sandbox, err = engi.SandboxOfLabel(label); err != nil {
			return respond(w, http.StatusOK, []lifecycleEvent{}) // an invalid ID has no events
		}
		return tell(w, r, who, q)
	})
}
