package v1

// A Usage is what an owner uses, and its quota.
type Usage struct {
	Owner string `json:"owner,omitempty" doc:"absent for everything on the node"`
	Used  Quota  `json:"used"`
	Quota Quota  `json:"quota" doc:"an absent field means no limit"`

	Models []ModelUsage `json:"models,omitempty" doc:"what was spent on language models since the first of last month, the newest day first"`
}

// A ModelUsage is an owner's use of one model on one day.
type ModelUsage struct {
	Day   string `json:"day" format:"date" doc:"UTC" example:"2026-11-22"`
	Owner string `json:"owner,omitempty"`
	Model string `json:"model" example:"openai:gpt-4o"`
	TokenUsage
}

// A Quota is an amount of each resource that is counted.
type Quota struct {
	Sandboxes int     `json:"sandboxes,omitempty" doc:"of any state but stopped"`
	PerDay    int     `json:"per_day,omitempty" doc:"created in the last 24 hours"`
	VCPUs     float64 `json:"vcpus,omitempty" doc:"of running sandboxes"`
	Memory    Bytes   `json:"memory,omitempty" doc:"of running sandboxes"`
	Disk      Bytes   `json:"disk,omitempty" doc:"of sandboxes, snapshots and volumes"`
	Volumes   int     `json:"volumes,omitempty"`
	Snapshots int     `json:"snapshots,omitempty"`
}
