package v1

import "time"

// An AppAlert says that a metric of an app has exceeded its threshold for some time.
type AppAlert struct {
	Metric string    `json:"metric" enum:"memory,errors,latency,files,cache,startup,server"`
	Value  float64   `json:"value" doc:"Value when the alert was raised: a share of 1, or seconds" example:"0.85"`
	Limit  float64   `json:"limit" example:"0.8"`
	Action string    `json:"action" doc:"Action that was taken" enum:"none,check_network,refresh_files,restart_server,restart_sandbox,hibernate"`
	Text   string    `json:"text" doc:"Text for people" example:"the sandbox uses 85 % of its memory, more than 80 %"`
	Since  time.Time `json:"since"`
	Seq    int64     `json:"seq" doc:"Seq of the alert's event" example:"4711"`
}
