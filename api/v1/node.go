package v1

import "time"

// A Pool keeps booted sandboxes ready for executions.
type Pool struct {
	Template string `json:"template" example:"base"`
	Digest   string `json:"digest,omitempty"`
	Language string `json:"language,omitempty" doc:"Language of the interpreter that is started in advance; absent for plain sandboxes"`
	Target   int    `json:"target" doc:"Number of warm sandboxes to keep"`
	Max      int    `json:"max" doc:"Maximum number of sandboxes, including those in use; 0 means the node's limit"`
	Ready    int    `json:"ready"`
	Booting  int    `json:"booting"`
	Used     int    `json:"used"`
	Waiting  int    `json:"waiting" doc:"Number of queued requests"`
}

// A Node describes the server.
type Node struct {
	Version     string    `json:"version"`
	API         string    `json:"api" doc:"Version of the API" example:"v1"`
	Tier        string    `json:"tier" doc:"Isolation of the node's sandboxes" example:"gvisor"`
	NotEnforced []string  `json:"not_enforced" doc:"Limits that this machine cannot enforce; 'engi doctor' says why"`
	Languages   []string  `json:"languages" doc:"Languages of POST /v1/executions"`
	StartedAt   time.Time `json:"started_at"`
}

// A Check is the result of one check of the server's machine.
type Check struct {
	Name   string `json:"name" example:"data directory"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty" doc:"Result of the check"`
	Fix    string `json:"fix,omitempty" doc:"Advice, in one line"`
}

// Readiness is the response of /readyz.
type Readiness struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty" doc:"Part that is not ready yet; with ready true, an optional part"`
}
