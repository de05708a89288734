package engi

import "time"

// An AppAlert says that a metric of an app has exceeded its threshold for a while.
// A metric has at most one alert, from [EventAppAlert] to [EventAppAlertResolved].
type AppAlert struct {
	Metric       string    // memory, errors, latency, files, cache, startup or server
	Value, Limit float64   // value and threshold when the alert was raised: a share of 1, or seconds
	Action       AppAction // action that was taken
	Text         string    // for people
	Since        time.Time
	Seq          int64 // Seq of the event that raised the alert
	Acted        bool  // the action has been carried out
}

// An AppAction is the response to an alert.
type AppAction string

const (
	AppActNone           AppAction = "none"
	AppActCheckNetwork   AppAction = "check_network"   // find out whether the sandbox or the server is slow
	AppActRefreshFiles   AppAction = "refresh_files"   // read the files again to fill the cache
	AppActRestartServer  AppAction = "restart_server"  // restart the server, which frees its memory
	AppActRestartSandbox AppAction = "restart_sandbox" // boot the sandbox again from its disk
	AppActHibernate      AppAction = "hibernate"       // hibernate the sandbox until it is used again
)

// AppActions returns every action, the least disruptive first.
func AppActions() []AppAction {
	return []AppAction{AppActNone, AppActCheckNetwork, AppActRefreshFiles, AppActRestartServer, AppActRestartSandbox, AppActHibernate}
}
