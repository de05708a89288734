import { useState } from 'react'
import './App.css'

export default function App() {
  const [items, setItems] = useState([])
  const [text, setText] = useState('')

  function add() {
    if (!text.trim()) return
    setItems([...items, text])
    setText('')
  }

  return (
    <div className="app">
      <h1>My todos</h1>
      <p>{items.length} items</p>
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
