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
	Type      string     `json:"type" doc:"Kind of work" example:"template.build"`
	Subject   string     `json:"subject" doc:"ID or name of the object that the operation is about" example:"base"`
	State     string     `json:"state" enum:"running,done,failed,cancelled"`
	Attempt   int        `json:"attempt" doc:"Number of the attempt: 1, plus one for each restart of the server since"`
	Result    string     `json:"result,omitempty" format:"uri-reference" doc:"Path of the created object; only with state done" example:"/v1/templates/base"`
	Error     *Problem   `json:"error,omitempty" doc:"Error; only with state failed"`
	CreatedAt time.Time  `json:"created_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty" doc:"End of the operation; absent while it is running"`
}

// Over reports whether the operation has ended.
func (x Operation) Over() bool { return x.State != OperationRunning }

// An OperationUpdate is one update of an operation in a stream. The set fields
// depend on Type: progress, log, result (the last one: the end of the operation, possibly
// a failure), error (the last one: the stream broke) or heartbeat.
type OperationUpdate struct {
	Type      string     `json:"type" enum:"progress,log,result,error,heartbeat"`
	Offset    int64      `json:"offset" minimum:"0" doc:"Offset with which to resume the stream without losing or repeating events"`
	Step      int        `json:"step,omitempty" doc:"Number of the step, from 1"`
	Steps     int        `json:"steps,omitempty" doc:"Total; absent if it is unknown"`
	Name      string     `json:"name,omitempty" doc:"Name of the step"`
	Done      int64      `json:"done,omitempty" doc:"Bytes or items of the step that are done"`
	Total     int64      `json:"total,omitempty" doc:"Total; absent if it is unknown"`
	Log       string     `json:"log,omitempty" doc:"Line of the step's output"`
	Operation *Operation `json:"operation,omitempty" doc:"Result; only with type result"`
	Error     *Problem   `json:"error,omitempty" doc:"Error; only with type error"`
}
