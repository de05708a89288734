package v1

import "time"

// States of an operation. All but the first are final.
const (
	OperationRunning   = "running"
	OperationDone      = "done"
	OperationFailed    = "failed"
	OperationCancelled = "cancelled"
)

// An Operation is work that lasts longer than a request.
type Operation struct {
	ID        string     `json:"id" example:"opn_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string     `json:"owner,omitempty"`
	Type      string     `json:"type" doc:"what is done" example:"template.build"`
	Subject   string     `json:"subject" doc:"ID or name of its subject" example:"base"`
	State     string     `json:"state" enum:"running,done,failed,cancelled"`
	Attempt   int        `json:"attempt" doc:"1, plus one for each restart of the server meanwhile"`
	Result    string     `json:"result,omitempty" format:"uri-reference" doc:"path of what was created; with state done" example:"/v1/templates/base"`
	Error     *Problem   `json:"error,omitempty" doc:"with state failed"`
	CreatedAt time.Time  `json:"created_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty" doc:"absent while it is running"`
}

// Over reports whether the operation has ended.
func (x Operation) Over() bool { return x.State != OperationRunning }

// An OperationUpdate is one step of an operation in a stream. Which fields are
// set depends on Type: progress, log, result (the last: how it ended, which may
// be a failure), error (the last: the stream broke off) or heartbeat.
type OperationUpdate struct {
	Type      string     `json:"type" enum:"progress,log,result,error,heartbeat"`
	Offset    int64      `json:"offset" minimum:"0" doc:"resume here and nothing is lost or repeated"`
	Step      int        `json:"step,omitempty" doc:"1 is the first"`
	Steps     int        `json:"steps,omitempty" doc:"absent if unknown"`
	Name      string     `json:"name,omitempty" doc:"what the step does"`
	Done      int64      `json:"done,omitempty" doc:"bytes or items of the step done"`
	Total     int64      `json:"total,omitempty" doc:"absent if unknown"`
	Log       string     `json:"log,omitempty" doc:"a line of the step's output"`
	Operation *Operation `json:"operation,omitempty" doc:"with type result"`
	Error     *Problem   `json:"error,omitempty" doc:"with type error"`
}
