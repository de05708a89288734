package v1

import (
	"encoding/json"
	"time"
)

// States of a function run. The last three are final.
const (
	FunctionQueued    = "queued"
	FunctionRunning   = "running"
	FunctionWaiting   = "waiting"
	FunctionDone      = "done"
	FunctionFailed    = "failed"
	FunctionCancelled = "cancelled"
)

// An EventRequest sends an event, which starts the functions bound to
// its type.
type EventRequest struct {
	Type string          `json:"type,omitempty" doc:"Type: 1 to 128 letters, digits and /._-; types that the server uses itself are refused" example:"engi/sandbox/create"`
	Name string          `json:"name,omitempty" doc:"Alias of type" example:"engi/sandbox/create"`
	Data json.RawMessage `json:"data,omitempty" doc:"Object of at most 256 KiB; absent means an empty one"`
}

// An Event is an entry in the event log.
type Event struct {
	Seq       int64           `json:"seq,omitempty" doc:"Position in the log: ascending, with gaps" example:"4711"`
	ID        string          `json:"id,omitempty" doc:"ID of the event; absent in a heartbeat and an error" example:"evt_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string          `json:"owner,omitempty"`
	Subject   string          `json:"subject,omitempty" doc:"ID of the object that the event is about, or of the event itself if there is none" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Type      string          `json:"type" example:"sandbox.running"`
	Name      string          `json:"name,omitempty" doc:"Alias of type"`
	Actor     string          `json:"actor,omitempty" doc:"ID of the key, run or function run that caused the event; absent for the server itself"`
	Data      json.RawMessage `json:"data,omitempty" doc:"Object; docs/events.md describes its members"`
	ReplayOf  string          `json:"replay_of,omitempty" doc:"ID of the event that this one repeats"`
	RunIDs    []string        `json:"run_ids,omitempty" doc:"IDs of the function runs that the event started; absent in lists and streams"`
	CreatedAt time.Time       `json:"created_at,omitzero"`
	Error     *Problem        `json:"error,omitempty" doc:"Reason why the stream ends"`
}

// A ReplayRequest sends an event again.
type ReplayRequest struct {
	Function string `json:"function,omitempty" doc:"Name of a function; absent means all functions that are bound to the event's type now"`
}

// A Function is a durable function that runs on events or on a schedule.
type Function struct {
	Name        string          `json:"name" example:"sandbox-create"`
	Description string          `json:"description,omitempty"`
	Event       string          `json:"event,omitempty" doc:"Type of the events that start the function" example:"engi/sandbox/create"`
	Cron        string          `json:"cron,omitempty" doc:"Schedule: five fields, in UTC" example:"0 4 * * *"`
	Scopes      []string        `json:"scopes,omitempty" doc:"Scopes that a key needs, in addition to events, to send such an event"`
	Input       json.RawMessage `json:"input,omitempty" doc:"JSON schema of the event's data; absent means any object"`
	Retries     int             `json:"retries" doc:"Number of attempts after the first"`
	Concurrency int             `json:"concurrency,omitempty" doc:"Maximum number of concurrent runs; absent means no limit"`
	PerOwner    int             `json:"concurrency_per_owner,omitempty" doc:"Maximum number of concurrent runs of one owner; absent means no limit"`
	Timeout     Duration        `json:"timeout,omitempty" doc:"Maximum time of a run, without its time in the queue; absent means no limit"`
}

// A FunctionRun is one run of a function.
type FunctionRun struct {
	ID        string          `json:"id" example:"fnr_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string          `json:"owner,omitempty"`
	Function  string          `json:"function"`
	EventID   string          `json:"event_id,omitempty" doc:"ID of the event; absent for a scheduled run"`
	State     string          `json:"state" enum:"queued,running,waiting,done,failed,cancelled" doc:"waiting: the next attempt is scheduled, or the run waits for an event or a time"`
	Attempt   int             `json:"attempt" doc:"Number of the attempt, from 1; 0 before the first"`
	Output    json.RawMessage `json:"output,omitempty"`
	Error     *Problem        `json:"error,omitempty" doc:"Error of a failed run, or of the last attempt of a waiting run"`
	Wait      *FunctionWait   `json:"wait,omitempty" doc:"What a waiting run waits for; absent if that is the next attempt"`
	Steps     []FunctionStep  `json:"steps,omitempty" doc:"Steps; absent in lists"`
	CreatedAt time.Time       `json:"created_at"`
	StartedAt *time.Time      `json:"started_at,omitempty"`
	EndedAt   *time.Time      `json:"ended_at,omitempty"`
}

// Over reports whether the run has ended.
func (r FunctionRun) Over() bool {
	return r.State == FunctionDone || r.State == FunctionFailed || r.State == FunctionCancelled
}

// A FunctionWait says what a run waits for: an event, or only a time if it has neither types nor
// subject.
type FunctionWait struct {
	Step    string     `json:"step" doc:"Step that waits" example:"paid"`
	Types   []string   `json:"types,omitempty" doc:"Types of the event; absent means all" example:"order.paid"`
	Subject string     `json:"subject,omitempty" doc:"ID of the object that the event is about; absent means any"`
	Until   *time.Time `json:"until,omitempty" doc:"End of the wait; absent means no limit"`
}

// A FunctionStep is a part of a run that is not repeated after its completion.
type FunctionStep struct {
	Name      string          `json:"name" example:"create"`
	Attempts  int             `json:"attempts"`
	Output    json.RawMessage `json:"output,omitempty" doc:"Output; absent if it has more than 64 KiB"`
	Error     *Problem        `json:"error,omitempty" doc:"Error of the last attempt, if it failed"`
	StartedAt time.Time       `json:"started_at"`
	EndedAt   *time.Time      `json:"ended_at,omitempty"`
}
