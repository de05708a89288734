package fleet

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet/pool"
)

// metrics holds the counters and histograms of a Manager. Current values are in gauges.
type metrics struct {
	claims     *prometheus.HistogramVec // by result: ready, waited, booted
	boots      prometheus.Histogram
	failures   prometheus.Counter
	teardowns  prometheus.Counter
	executions *prometheus.CounterVec // by language and cause
	refused    *prometheus.CounterVec // by kind
	duration   *prometheus.HistogramVec
	repaired   *prometheus.CounterVec // by repair
	lost       prometheus.Counter
	created    *prometheus.HistogramVec // by origin: warm, cold, snapshot, fork
	moves      *prometheus.HistogramVec // by move: pause, resume, hibernate, wake, snapshot, fork
	wakes      *prometheus.CounterVec   // by reason: use, request
	ended      *prometheus.CounterVec   // by cause
}

// fine is the list of buckets from a tenth of a millisecond to a minute, in seconds.
var fine = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

func newMetrics() *metrics {
	return &metrics{
		claims: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "engi_claim_seconds", Help: "Time to get a sandbox for an execution.", Buckets: fine}, []string{"result"}),
		boots: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "engi_boot_seconds", Help: "Time to make a sandbox ready.", Buckets: fine}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "engi_boot_failures_total", Help: "Sandboxes that could not be made ready."}),
		teardowns: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "engi_teardowns_total", Help: "Sandboxes destroyed."}),
		executions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "engi_executions_total", Help: "Executions that ended, by language and cause."}, []string{"language", "cause"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "engi_executions_refused_total", Help: "Executions refused, by kind of error."}, []string{"kind"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "engi_execution_seconds", Help: "Time from admission to result.", Buckets: fine}, []string{"language"}),
		repaired: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "engi_repairs_total", Help: "Differences between records and machines or files that were repaired, by repair."}, []string{"what"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "engi_ready_sandboxes_lost_total", Help: "Warm sandboxes that died before they were used."}),
		created: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "engi_sandbox_create_seconds", Help: "Time to create a sandbox, by what it was created from.", Buckets: fine}, []string{"from"}),
		moves: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "engi_sandbox_move_seconds", Help: "Time of changes of a sandbox's state, by change.", Buckets: fine}, []string{"move"}),
		wakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "engi_sandbox_wakes_total", Help: "Paused or hibernated sandboxes resumed, by what resumed them."}, []string{"by"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "engi_sandboxes_ended_total", Help: "Sandboxes created by owners that ended, by cause."}, []string{"cause"}),
	}
}

// register registers all metrics of a Manager.
func (x *metrics) register(r prometheus.Registerer, m *Manager) error {
	for _, c := range []prometheus.Collector{x.claims, x.boots, x.failures, x.teardowns, x.executions, x.refused, x.duration, x.repaired, x.lost,
		x.created, x.moves, x.wakes, x.ended, gauges{m.pools.sched, m.sandboxes}} {
		if err := r.Register(c); err != nil {
			return engi.Errorf(engi.Internal, "register metrics: %v", err)
		}
	}
	return nil
}

// gauges reports the current numbers of a Manager at each scrape.
type gauges struct {
	sched     *pool.Scheduler[*instance]
	sandboxes *sandboxes
}

var (
	poolDesc = prometheus.NewDesc("engi_pool_sandboxes", "Sandboxes of a pool by state; target is how many warm ones are wanted.",
		[]string{"template", "language", "state"}, nil)
	queueDesc = prometheus.NewDesc("engi_queue_length", "Executions that wait for a sandbox.", nil, nil)
	ownedDesc = prometheus.NewDesc("engi_owned_sandboxes", "Sandboxes created by owners, by state.", []string{"state"}, nil)
	aliveDesc = prometheus.NewDesc("engi_sandboxes", "Sandboxes with a machine, booting and ending ones included.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c gauges) Describe(out chan<- *prometheus.Desc) {
	out <- poolDesc
	out <- queueDesc
	out <- aliveDesc
	out <- ownedDesc
}

// Collect implements prometheus.Collector.
func (c gauges) Collect(out chan<- prometheus.Metric) {
	type label struct{ template, language, state string }
	sum := map[label]int{}
	for _, p := range c.sched.Status() {
		lang := string(p.Language)
		if lang == "" {
			lang = "bare"
		}
		// Pools of unusual sizes share the labels of their language.
		sum[label{p.Template, lang, "target"}] += p.Target
		sum[label{p.Template, lang, "ready"}] += p.Ready
		sum[label{p.Template, lang, "booting"}] += p.Booting
		sum[label{p.Template, lang, "used"}] += p.Used
	}
	for l, n := range sum {
		out <- prometheus.MustNewConstMetric(poolDesc, prometheus.GaugeValue, float64(n), l.template, l.language, l.state)
	}
	states := map[engi.State]int{engi.Running: 0, engi.Paused: 0, engi.Hibernated: 0}
	for _, sb := range c.sandboxes.all() {
		states[sb.record().State]++
	}
	for state, n := range states {
		out <- prometheus.MustNewConstMetric(ownedDesc, prometheus.GaugeValue, float64(n), string(state))
	}
	alive, waiting := c.sched.Counts()
	out <- prometheus.MustNewConstMetric(queueDesc, prometheus.GaugeValue, float64(waiting))
	out <- prometheus.MustNewConstMetric(aliveDesc, prometheus.GaugeValue, float64(alive))
}
