package engi

import "time"

// An AppAlert says that something of an app has been beyond its threshold for a while.
// There is one for a metric at most, from [EventAppAlert] to [EventAppAlertResolved].
type AppAlert struct {
	Metric       string    // memory, errors, latency, files, cache, startup or server
	Value, Limit float64   // when it was raised: a share of 1, or seconds
	Action       AppAction // that was taken
	Text         string    // for people
	Since        time.Time
	Seq          int64 // of the event with which it was raised
	Acted        bool  // the action was taken
}

// An AppAction is what is done about an app that is beyond a threshold.
type AppAction string

const (
	AppActNone           AppAction = "none"
	AppActCheckNetwork   AppAction = "check_network"   // find out whether the sandbox or the server is slow
	AppActRefreshFiles   AppAction = "refresh_files"   // read the files again, so that they are known
	AppActRestartServer  AppAction = "restart_server"  // which drops what it keeps in memory
	AppActRestartSandbox AppAction = "restart_sandbox" // boot it again on its disk
	AppActHibernate      AppAction = "hibernate"       // until it is used again
)

// AppActions returns every action, those that do more later.
func AppActions() []AppAction {
	return []AppAction{AppActNone, AppActCheckNetwork, AppActRefreshFiles, AppActRestartServer, AppActRestartSandbox, AppActHibernate}
}
