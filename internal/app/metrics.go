package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi/internal/engi"
)

// metrics are the Prometheus metrics of a Service.
type metrics struct {
	starts  prometheus.Histogram
	applies *prometheus.HistogramVec // label outcome: done, failed
	answers prometheus.Histogram
	reads   *prometheus.CounterVec // label from: cache, sandbox
	files   prometheus.Histogram
	checks  *prometheus.CounterVec // label result: ok, failed
	warned  *prometheus.CounterVec // label: the metric of the alert
	apps    *prometheus.GaugeVec   // label: state
	alerts  *prometheus.GaugeVec   // label: metric
	memory  prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	buckets := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	histogram := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	}
	m := &metrics{
		starts:  prometheus.NewHistogram(histogram("engi_app_start_seconds", "Time from the creation of an app's sandbox to the first answer of its server.")),
		applies: prometheus.NewHistogramVec(histogram("engi_app_apply_seconds", "Time of applies, by outcome."), []string{"outcome"}),
		answers: prometheus.NewHistogram(histogram("engi_app_answer_seconds", "Time that servers of apps take to answer a check.")),
		files:   prometheus.NewHistogram(histogram("engi_app_files_seconds", "Time to read what has changed in the sandbox of an app.")),
		reads:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "engi_app_file_reads_total", Help: "Files of sandboxes looked at, by where their content came from."}, []string{"from"}),
		checks:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "engi_app_checks_total", Help: "Checks of servers of apps, by result."}, []string{"result"}),
		warned:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "engi_app_thresholds_total", Help: "Thresholds that apps have crossed, by threshold."}, []string{"threshold"}),
		apps:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "engi_apps", Help: "Apps, by state."}, []string{"state"}),
		alerts:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "engi_app_alerts", Help: "Apps beyond a threshold, by metric."}, []string{"metric"}),
		memory:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "engi_app_memory_bytes", Help: "Memory that sandboxes of apps used at their last check, in all."}),
	}
	if r != nil {
		r.MustRegister(m.starts, m.applies, m.answers, m.files, m.reads, m.checks, m.warned, m.apps, m.alerts, m.memory)
	}
	return m
}

// applied records an apply that has ended.
func (m *metrics) applied(began time.Time, err error) {
	outcome := "done"
	if err != nil {
		outcome = "failed"
	}
	m.applies.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
}

// checked records a health check of a server.
func (m *metrics) checked(took time.Duration, err error) {
	m.answers.Observe(took.Seconds())
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.checks.WithLabelValues(result).Inc()
}

// count sets the numbers of apps and alerts.
func (m *metrics) count(all []Record) {
	n, alerts := map[engi.AppState]int{}, map[string]int{}
	for _, r := range all {
		n[r.State]++
		for _, x := range r.Alerts {
			alerts[x.Metric]++
		}
	}
	for _, metric := range []string{"memory", "errors", "latency", "files", "cache", "startup", metricServer} {
		m.alerts.WithLabelValues(metric).Set(float64(alerts[metric]))
	}
	for _, state := range engi.AppStates() {
		if state != engi.AppRemoved {
			m.apps.WithLabelValues(string(state)).Set(float64(n[state]))
		}
	}
}
