package v1

import "time"

// A Pool is a warm pool: sandboxes that wait for code.
type Pool struct {
	Template string `json:"template" example:"base"`
	Digest   string `json:"digest,omitempty"`
	Language string `json:"language,omitempty" doc:"of the interpreter that waits inside; absent for bare sandboxes"`
	Target   int    `json:"target" doc:"warm members wanted"`
	Max      int    `json:"max" doc:"sandboxes at most, used ones included; 0 leaves it to the node's limit"`
	Ready    int    `json:"ready"`
	Booting  int    `json:"booting"`
	Used     int    `json:"used"`
	Waiting  int    `json:"waiting" doc:"claims in the queue"`
}

// A Node is the server that answers.
type Node struct {
	Version     string    `json:"version"`
	API         string    `json:"api" doc:"version of this interface" example:"v1"`
	Tier        string    `json:"tier" doc:"of the sandboxes it makes" example:"gvisor"`
	NotEnforced []string  `json:"not_enforced" doc:"limits that this machine cannot enforce; 'engi doctor' says why"`
	Languages   []string  `json:"languages" doc:"that POST /v1/executions accepts"`
	StartedAt   time.Time `json:"started_at"`
}

// Readiness is what /readyz answers.
type Readiness struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty" doc:"what is not ready yet; with ready, a part that others do not wait for"`
}
