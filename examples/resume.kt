// Ask one question and print the answer, whatever happens to the connection on the way.
//
// For Android and the JVM: OkHttp 3.13 or newer, and org.json, which Android has. `ask` blocks: call it from Dispatchers.IO.
//
// 1. The turn carries an `id` of ours. Until the server has named the response, the same frame is sent again: one turn.
// 2. From then on only the rest is asked for: `response.retrieve` with `starting_after`, the last number that was seen.
// 3. Events at or below that number are repetitions. The terminal event ends it and has the whole text.

import java.util.UUID
import java.util.concurrent.CompletableFuture
import kotlin.math.min
import kotlin.random.Random
import kotlin.system.exitProcess
import okhttp3.OkHttpClient
import okhttp3.Request
import okhttp3.Response
import okhttp3.WebSocket
import okhttp3.WebSocketListener
import org.json.JSONObject

private val TERMINAL = setOf("response.completed", "response.incomplete", "response.failed")
private val RETRY_CODES = setOf(1000, 1001, 1005, 1006, 1011, 1012, 1013, 1015) // after others a new connection is no use
private const val FIRST_DELAY_MS = 300L
private const val MAX_DELAY_MS = 10_000L

class Refused(message: String) : Exception(message)

/** One answer: what to send on a new connection, and what has come of it so far. */
private class Answer(text: String, private val onText: (String) -> Unit) {
    private val request = JSONObject().put("type", "response.create").put("id", UUID.randomUUID().toString()).put("input", text)
    private var id: String? = null
    private var last = -1L

    fun frame(): JSONObject =
        if (id == null) request
        else JSONObject().put("type", "response.retrieve").put("response_id", id).put("starting_after", last)

    /** Returns the response object if that was the end. */
    fun receive(event: JSONObject): JSONObject? {
        val type = event.getString("type")
        val number = event.optLong("sequence_number", -1)
        if (type !in TERMINAL && number <= last) return null
        last = maxOf(last, number)
        id = id ?: event.optJSONObject("response")?.getString("id")
        if (type == "response.output_text.delta") onText(event.getString("delta"))
        return if (type in TERMINAL) event.getJSONObject("response") else null
    }
}

/** What came of one connection. retryAfterMs: when the server says; null: our own back-off. */
private class Outcome(val response: JSONObject? = null, val refused: String? = null, val retryAfterMs: Long? = null)

/** Calls `onText` with each new piece; returns the response object at its end. Throws when the server refuses. */
fun ask(client: OkHttpClient, url: String, text: String, onText: (String) -> Unit): JSONObject {
    val answer = Answer(text, onText)
    var attempt = 0
    while (true) {
        var heard = false
        val outcome = connection(client, url, answer) { heard = true }
        outcome.response?.let { return it }
        outcome.refused?.let { throw Refused(it) }
        if (heard) attempt = 0
        val backOff = min(MAX_DELAY_MS, FIRST_DELAY_MS shl min(attempt++, 10)) * Random.nextDouble(0.5, 1.0)
        Thread.sleep(outcome.retryAfterMs ?: backOff.toLong())
    }
}

/** One connection, until the answer ends, the server refuses, or the connection is lost. */
private fun connection(client: OkHttpClient, url: String, answer: Answer, onHeard: () -> Unit): Outcome {
    val outcome = CompletableFuture<Outcome>()
    val listener = object : WebSocketListener() {
        override fun onOpen(webSocket: WebSocket, response: Response) {
            webSocket.send(answer.frame().toString())
        }

        override fun onMessage(webSocket: WebSocket, text: String) {
            if (outcome.isDone) return
            onHeard()
            val event = JSONObject(text)
            if (event.getString("type") == "error") {
                val error = event.getJSONObject("error")
                val wait = error.optLong("retry_after_ms", -1)
                outcome.complete(if (wait < 0) Outcome(refused = error.getString("message")) else Outcome(retryAfterMs = wait))
            } else {
                answer.receive(event)?.let { outcome.complete(Outcome(response = it)) }
            }
        }

        override fun onClosing(webSocket: WebSocket, code: Int, reason: String) {
            val refused = if (code in RETRY_CODES) null else "the server closed the connection: $code $reason"
            outcome.complete(Outcome(refused = refused))
        }

        override fun onFailure(webSocket: WebSocket, t: Throwable, response: Response?) {
            outcome.complete(Outcome()) // not there (yet), or lost: try again
        }
    }
    val socket = client.newWebSocket(Request.Builder().url(url).build(), listener)
    return outcome.get().also { socket.close(1000, null) }
}

fun main(arguments: Array<String>) {
    val status = try {
        val response = ask(OkHttpClient(), arguments[0], arguments[1]) { piece -> print(piece); System.out.flush() }
        System.err.println("\n[${response.getString("status")}]")
        0
    } catch (refused: Refused) {
        System.err.println(refused.message)
        1
    }
    exitProcess(status) // OkHttp keeps threads for a while
}
