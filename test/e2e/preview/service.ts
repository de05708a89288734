// The service inside: everything a preview must carry, with nothing to install.
import { createHash } from 'node:crypto'

const pattern = (at: number, n: number) => {
  const b = new Uint8Array(n)
  for (let i = 0; i < n; i++) b[i] = ((at + i) * 7) & 255
  return b
}

Deno.serve({ hostname: '127.0.0.1', port: 8000 }, async (r) => {
  const u = new URL(r.url)
  switch (u.pathname) {
    case '/headers':
      return Response.json({ host: r.headers.get('host'), ...Object.fromEntries(r.headers) })
    case '/echo': {
      const { socket, response } = Deno.upgradeWebSocket(r)
      socket.onmessage = (e) => socket.send(e.data)
      return response
    }
    case '/events': {
      let timer = 0
      return new Response(new ReadableStream({
        start(c) {
          let n = 0
          timer = setInterval(() => c.enqueue(new TextEncoder().encode(`data: ${n++}\n\n`)), 50)
        },
        cancel() { clearInterval(timer) },
      }), { headers: { 'content-type': 'text/event-stream' } })
    }
    case '/bytes': {
      const size = Number(u.searchParams.get('n'))
      const piece = pattern(0, 1 << 20) // a multiple of the pattern's length
      let left = size
      return new Response(new ReadableStream({
        pull(c) {
          if (left <= 0) return c.close()
          const n = Math.min(left, piece.length)
          left -= n
          c.enqueue(n === piece.length ? piece : piece.subarray(0, n))
        },
      }))
    }
    case '/sum': {
      const h = createHash('sha256')
      let n = 0
      for await (const piece of r.body ?? []) { h.update(piece); n += piece.length }
      return Response.json({ bytes: n, sha256: h.digest('hex') })
    }
    case '/cookie':
      return new Response('', { headers: { 'set-cookie': 'a=1; Domain=localhost; Path=/' } })
  }
  return new Response('hello\n')
})
