import { useState } from 'react'
import './App.css'

export default function App() {
  const [items, setItems] = useState([])
  const [text, setText] = useState('')

  function add() {
    if (!text) return
    setItems([...items, text])
    setText('')
  }

  return (
    <div className="app">
      <h1>Todos</h1>
      <input value={text} onChange={(e) => setText(e.target.value)} />
      <button onClick={add}>Add</button>
      <ul>
        {items.map((item, i) => (
          <li key={i}>{item}</li>
        ))}
      </ul>
    </div>
  )
}
