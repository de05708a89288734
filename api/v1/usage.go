package v1

// A Usage is the usage of an owner, and its quota.
type Usage struct {
	Owner string `json:"owner,omitempty" doc:"Owner; absent for everything on the node"`
	Used  Quota  `json:"used"`
	Quota Quota  `json:"quota" doc:"Quota; an absent field means no limit"`

	Models []ModelUsage `json:"models,omitempty" doc:"Cost of language models since the first of last month, the newest day first"`
}

// A ModelUsage is an owner's use of one model on one day.
type ModelUsage struct {
	Day   string `json:"day" format:"date" doc:"Day, in UTC" example:"2026-11-22"`
	Owner string `json:"owner,omitempty"`
	Model string `json:"model" example:"openai:gpt-4o"`
	TokenUsage
}

// A Quota is an amount of each counted resource.
type Quota struct {
	Sandboxes int     `json:"sandboxes,omitempty" doc:"Number of sandboxes in any state except stopped"`
	PerDay    int     `json:"per_day,omitempty" doc:"Number of sandboxes created in the last 24 hours"`
	VCPUs     float64 `json:"vcpus,omitempty" doc:"Total of running sandboxes"`
	Memory    Bytes   `json:"memory,omitempty" doc:"Total of running sandboxes"`
	Disk      Bytes   `json:"disk,omitempty" doc:"Total bytes of sandboxes, snapshots and volumes"`
	Volumes   int     `json:"volumes,omitempty"`
	Snapshots int     `json:"snapshots,omitempty"`
}
