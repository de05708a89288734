// Writes to and reads from the databases of a workspace, whose addresses are in its argument,
// with the clients that programs in JavaScript use.
import assert from 'node:assert/strict'
import { drizzle } from 'drizzle-orm/node-postgres'
import { eq } from 'drizzle-orm'
import { pgTable, serial, text } from 'drizzle-orm/pg-core'
import { MongoClient } from 'mongodb'
import mysql from 'mysql2/promise'
import pg from 'pg'
import { createClient } from 'redis'

const at = JSON.parse(process.argv[2])

const pool = new pg.Pool({ connectionString: at.postgres })
await pool.query('create table js (id serial primary key, name text not null)')
const made = await pool.query('insert into js (name) values ($1), ($2) returning id', ["it's", 'ü'])
assert.deepEqual(made.rows, [{ id: 1 }, { id: 2 }])
const client = await pool.connect()
await client.query('begin')
await client.query('delete from js')
await client.query('rollback')
client.release()
const js = pgTable('js', { id: serial('id').primaryKey(), name: text('name').notNull() })
const db = drizzle(pool)
await db.insert(js).values({ name: 'drizzle' })
assert.deepEqual(await db.select().from(js).where(eq(js.name, 'ü')), [{ id: 2, name: 'ü' }])
assert.equal((await db.select().from(js)).length, 3)
await pool.end()

const maria = await mysql.createConnection(at.mysql)
await maria.query('create table js (id int auto_increment primary key, name varchar(20))')
await maria.execute('insert into js (name) values (?), (?)', ["it's", 'ü'])
assert.deepEqual((await maria.execute('select id, name from js where name = ?', ['ü']))[0], [{ id: 2, name: 'ü' }])
await maria.end()

const cache = await createClient({ url: at.redis }).connect()
await cache.multi().set('js', 'ü').incr('js:n').exec()
assert.equal(await cache.get('js'), 'ü')
await cache.close()

const mongo = await new MongoClient(at.mongodb).connect()
const notes = mongo.db().collection('js')
await notes.insertMany([{ name: 'a', n: 1, at: new Date(0) }, { name: 'ü', n: 2, tags: ['x'] }])
await notes.updateOne({ name: 'a' }, { $set: { n: 5 } })
assert.equal((await notes.findOne({ tags: 'x' })).name, 'ü')
assert.deepEqual(await notes.aggregate([{ $group: { _id: null, sum: { $sum: '$n' } } }]).toArray(), [{ _id: null, sum: 7 }])
await mongo.close()
await assert.rejects(new MongoClient(at.mongodb.replace(/:[^:@]+@/, ':wrong@')).connect(), /Authentication failed/)
