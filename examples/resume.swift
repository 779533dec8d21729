// Ask one question and print the answer, whatever happens to the connection on the way.
//
// For iOS 16, macOS 13 and later; needs nothing but Foundation.
//
// 1. The turn carries an `id` of ours. Until the server has named the response, the same frame is sent again: one turn.
// 2. From then on only the rest is asked for: `response.retrieve` with `starting_after`, the last number that was seen.
// 3. Events at or below that number are repetitions. The terminal event ends it and has the whole text.

import Foundation

private let terminal: Set<String> = ["response.completed", "response.incomplete", "response.failed"]
private let retryCodes: Set<Int> = [0, 1000, 1001, 1005, 1006, 1011, 1012, 1013, 1015]  // 0: no close frame came
private let firstDelay = 0.3
private let maxDelay = 10.0

struct Refused: Error {
    let message: String
}

/// One answer: what to send on a new connection, and what has come of it so far.
private struct Answer {
    private let request: [String: Any]
    private var id: String?
    private var last = -1

    init(_ text: String) {
        request = ["type": "response.create", "id": UUID().uuidString, "input": text]
    }

    func frame() throws -> String {
        var frame = request
        if let id {
            frame = ["type": "response.retrieve", "response_id": id, "starting_after": last]
        }
        return String(decoding: try JSONSerialization.data(withJSONObject: frame), as: UTF8.self)
    }

    /// Returns the response object if that was the end.
    mutating func receive(_ event: [String: Any], onText: (String) -> Void) -> [String: Any]? {
        let type = event["type"] as? String ?? ""
        let number = event["sequence_number"] as? Int ?? -1
        if !terminal.contains(type) && number <= last { return nil }
        last = max(last, number)
        let response = event["response"] as? [String: Any]
        if id == nil { id = response?["id"] as? String }
        if type == "response.output_text.delta", let delta = event["delta"] as? String { onText(delta) }
        return terminal.contains(type) ? response : nil
    }
}

/// Calls `onText` with each new piece; returns the response object at its end. Throws `Refused` when the server refuses.
func ask(_ url: URL, _ text: String, onText: (String) -> Void) async throws -> [String: Any] {
    var answer = Answer(text)
    var attempt = 0
    while true {
        var delay = Double.random(in: 0.5...1) * min(maxDelay, firstDelay * pow(2, Double(attempt)))
        attempt += 1
        let socket = URLSession.shared.webSocketTask(with: url)
        socket.maximumMessageSize = 64 * 1024 * 1024
        socket.resume()
        defer { socket.cancel(with: .normalClosure, reason: nil) }
        do {
            try await socket.send(.string(answer.frame()))
            receiving: while true {
                guard case .string(let frame) = try await socket.receive(),
                    let event = try JSONSerialization.jsonObject(with: Data(frame.utf8)) as? [String: Any]
                else { continue }
                attempt = 0
                if let error = event["error"] as? [String: Any], event["type"] as? String == "error" {
                    guard let wait = error["retry_after_ms"] as? Double else {
                        throw Refused(message: error["message"] as? String ?? "")
                    }
                    delay = wait / 1000  // ask again on a new connection, when the server says
                    break receiving
                }
                if let response = answer.receive(event, onText: onText) { return response }
            }
        } catch let refused as Refused {
            throw refused
        } catch is CancellationError {
            throw CancellationError()
        } catch {
            // Not there (yet), or lost: try again, unless the server's close code says that it is no use.
            if !retryCodes.contains(socket.closeCode.rawValue) {
                throw Refused(message: "the server closed the connection: \(socket.closeCode.rawValue)")
            }
        }
        try await Task.sleep(for: .seconds(delay))
    }
}

@main
struct Resume {
    static func main() async throws {
        let arguments = CommandLine.arguments
        let response = try await ask(URL(string: arguments[1])!, arguments[2]) { piece in
            FileHandle.standardOutput.write(Data(piece.utf8))
        }
        FileHandle.standardError.write(Data("\n[\(response["status"] ?? "")]\n".utf8))
    }
}
