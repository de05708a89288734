package gvisor

// Crash lets go of everything that the end of a process lets go of, so that
// another provider can take over as after a kill -9. The handles of before go
// on watching, which the dead do not.
func (p *Provider) Crash() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.live {
		if m != nil {
			m.listener.Close()
			m.accepts <- struct{}{}
			if m.spare != nil {
				m.spare.Close()
				m.spare = nil
			}
			<-m.accepts
		}
	}
}
