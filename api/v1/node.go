package v1

import "time"

// A Pool keeps booted sandboxes ready for executions.
type Pool struct {
	Template string `json:"template" example:"base"`
	Digest   string `json:"digest,omitempty"`
	Language string `json:"language,omitempty" doc:"of the interpreter started in advance; absent for bare sandboxes"`
	Target   int    `json:"target" doc:"number of ready sandboxes to keep"`
	Max      int    `json:"max" doc:"maximum of sandboxes, including those in use; 0 means the node's limit"`
	Ready    int    `json:"ready"`
	Booting  int    `json:"booting"`
	Used     int    `json:"used"`
	Waiting  int    `json:"waiting" doc:"requests waiting in the queue"`
}

// A Node describes the server.
type Node struct {
	Version     string    `json:"version"`
	API         string    `json:"api" doc:"version of this interface" example:"v1"`
	Tier        string    `json:"tier" doc:"of the sandboxes it makes" example:"gvisor"`
	NotEnforced []string  `json:"not_enforced" doc:"limits that this machine cannot enforce; 'engi doctor' says why"`
	Languages   []string  `json:"languages" doc:"that POST /v1/executions accepts"`
	StartedAt   time.Time `json:"started_at"`
}

// A Check is the result of checking one property of the server's machine.
type Check struct {
	Name   string `json:"name" example:"data directory"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty" doc:"what was found"`
	Fix    string `json:"fix,omitempty" doc:"what would make it better, in one line"`
}

// Readiness is the response of /readyz.
type Readiness struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty" doc:"what is not ready yet; with ready true, an optional part"`
}
