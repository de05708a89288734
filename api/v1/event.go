package v1

import (
	"encoding/json"
	"time"
)

// States of a function's run. The last three are final.
const (
	FunctionQueued    = "queued"
	FunctionRunning   = "running"
	FunctionWaiting   = "waiting"
	FunctionDone      = "done"
	FunctionFailed    = "failed"
	FunctionCancelled = "cancelled"
)

// An EventRequest sends an event, which starts the functions that are bound to
// its type.
type EventRequest struct {
	Type string          `json:"type,omitempty" doc:"1 to 128 letters, digits and /._-; not one that the server appends itself" example:"engi/sandbox/create"`
	Name string          `json:"name,omitempty" doc:"the same as type, which may be left out then" example:"engi/sandbox/create"`
	Data json.RawMessage `json:"data,omitempty" doc:"an object of 256 KiB at most; absent means an empty one"`
}

// A LogEvent is an entry in the log of what has happened.
type Event struct {
	Seq       int64           `json:"seq,omitempty" doc:"position in the log: ascending, with gaps" example:"4711"`
	ID        string          `json:"id,omitempty" doc:"absent in a heartbeat and an error" example:"evt_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string          `json:"owner,omitempty"`
	Subject   string          `json:"subject,omitempty" doc:"ID of what the event is about; its own if it is about nothing else" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Type      string          `json:"type" example:"sandbox.running"`
	Name      string          `json:"name,omitempty" doc:"the same as type"`
	Actor     string          `json:"actor,omitempty" doc:"ID of the key, run or function run that caused it; absent for the server itself"`
	Data      json.RawMessage `json:"data,omitempty" doc:"an object; docs/events.md says what is in it"`
	ReplayOf  string          `json:"replay_of,omitempty" doc:"ID of the event that this one repeats"`
	RunIDs    []string        `json:"run_ids,omitempty" doc:"runs of functions that it started; absent in lists and streams"`
	CreatedAt time.Time       `json:"created_at,omitzero"`
	Error     *Problem        `json:"error,omitempty" doc:"why a stream ends"`
}

// A ReplayRequest sends an event again.
type ReplayRequest struct {
	Function string `json:"function,omitempty" doc:"for this function only; absent means for all that are bound to the event now"`
}

// A Function is a durable function that runs on events or on a schedule.
type Function struct {
	Name        string          `json:"name" example:"sandbox-create"`
	Description string          `json:"description,omitempty"`
	Event       string          `json:"event,omitempty" doc:"type of the events that start it" example:"engi/sandbox/create"`
	Cron        string          `json:"cron,omitempty" doc:"five fields, in UTC" example:"0 4 * * *"`
	Scopes      []string        `json:"scopes,omitempty" doc:"that a key with scopes needs beside events to send such an event"`
	Input       json.RawMessage `json:"input,omitempty" doc:"JSON schema of the event's data; absent means any object"`
	Retries     int             `json:"retries" doc:"after the first attempt"`
	Concurrency int             `json:"concurrency,omitempty" doc:"concurrent runs; absent means no limit"`
	PerOwner    int             `json:"concurrency_per_owner,omitempty" doc:"concurrent runs of one owner; absent means no limit"`
	Timeout     Duration        `json:"timeout,omitempty" doc:"of a run, without the time it waits for its turn; absent means none"`
}

// A FunctionRun is one run of a function.
type FunctionRun struct {
	ID        string          `json:"id" example:"fnr_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string          `json:"owner,omitempty"`
	Function  string          `json:"function"`
	EventID   string          `json:"event_id,omitempty" doc:"absent for a scheduled run"`
	State     string          `json:"state" enum:"queued,running,waiting,done,failed,cancelled" doc:"waiting: for its next attempt"`
	Attempt   int             `json:"attempt" doc:"from 1; 0 before the first"`
	Output    json.RawMessage `json:"output,omitempty"`
	Error     *Problem        `json:"error,omitempty" doc:"of a failed run, or of the last attempt of one that waits"`
	Steps     []FunctionStep  `json:"steps,omitempty" doc:"absent in lists"`
	CreatedAt time.Time       `json:"created_at"`
	StartedAt *time.Time      `json:"started_at,omitempty"`
	EndedAt   *time.Time      `json:"ended_at,omitempty"`
}

// Over reports whether the run has ended.
func (r FunctionRun) Over() bool {
	return r.State == FunctionDone || r.State == FunctionFailed || r.State == FunctionCancelled
}

// A FunctionStep is a part of a run that is not repeated once it is done.
type FunctionStep struct {
	Name      string          `json:"name" example:"create"`
	Attempts  int             `json:"attempts"`
	Output    json.RawMessage `json:"output,omitempty" doc:"left out if it is longer than 64 KiB"`
	Error     *Problem        `json:"error,omitempty" doc:"of its last attempt, if that failed"`
	StartedAt time.Time       `json:"started_at"`
	EndedAt   *time.Time      `json:"ended_at,omitempty"`
}
