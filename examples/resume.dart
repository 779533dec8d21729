// Ask one question and print the answer, whatever happens to the connection on the way.
//
//     dart run resume.dart ws://localhost:8000/v1/responses "What is the capital of France?"
//
// For Dart 3 and Flutter (not for the web, which has no dart:io); needs no package.
//
// 1. The turn carries an `id` of ours. Until the server has named the response, the same frame is sent again: one turn.
// 2. From then on only the rest is asked for: `response.retrieve` with `starting_after`, the last number that was seen.
// 3. Events at or below that number are repetitions. The terminal event ends it and has the whole text.

import 'dart:async';
import 'dart:convert';
import 'dart:io';
import 'dart:math';

const terminal = {'response.completed', 'response.incomplete', 'response.failed'};
const retryCodes = {null, 1000, 1001, 1005, 1006, 1011, 1012, 1013, 1015}; // after others a new connection is no use
const firstDelayMs = 300;
const maxDelayMs = 10000;
final random = Random.secure();

class Refused implements Exception {
  final String message;
  Refused(this.message);

  @override
  String toString() => message;
}

/// One answer: what to send on a new connection, and what has come of it so far.
class Answer {
  final Map<String, Object?> request;
  final void Function(String) onText;
  String? id;
  int last = -1;

  Answer(String text, this.onText)
      : request = {
          'type': 'response.create',
          'id': List.generate(4, (_) => random.nextInt(1 << 32).toRadixString(16)).join('-'),
          'input': text,
        };

  String frame() => jsonEncode(
      id == null ? request : {'type': 'response.retrieve', 'response_id': id, 'starting_after': last});

  /// Returns the response object if that was the end.
  Map<String, dynamic>? receive(Map<String, dynamic> event) {
    final type = event['type'] as String;
    final number = event['sequence_number'] as int? ?? -1;
    final isEnd = terminal.contains(type);
    if (!isEnd && number <= last) return null;
    last = max(last, number);
    final response = event['response'] as Map<String, dynamic>?;
    id ??= response?['id'] as String?;
    if (type == 'response.output_text.delta') onText(event['delta'] as String);
    return isEnd ? response : null;
  }
}

/// Calls [onText] with each new piece; returns the response object at its end. Throws [Refused] when the server refuses.
Future<Map<String, dynamic>> ask(String url, String text, void Function(String) onText) async {
  final answer = Answer(text, onText);
  for (var attempt = 0;; attempt++) {
    var delayMs = (0.5 + random.nextDouble() / 2) * min(maxDelayMs, firstDelayMs * pow(2, min(attempt, 10)));
    WebSocket? socket;
    try {
      socket = await WebSocket.connect(url);
      socket.add(answer.frame());
      await for (final frame in socket) {
        attempt = 0;
        final event = jsonDecode(frame as String) as Map<String, dynamic>;
        if (event['type'] == 'error') {
          final error = event['error'] as Map<String, dynamic>;
          final wait = error['retry_after_ms'] as int?;
          if (wait == null) throw Refused(error['message'] as String);
          delayMs = wait.toDouble(); // ask again on a new connection, when the server says
          break;
        }
        final response = answer.receive(event);
        if (response != null) return response;
      }
      if (!retryCodes.contains(socket.closeCode)) {
        throw Refused('the server closed the connection: ${socket.closeCode} ${socket.closeReason}');
      }
    } on IOException {
      // Not there (yet), or lost: try again.
    } finally {
      await socket?.close();
    }
    await Future<void>.delayed(Duration(milliseconds: delayMs.round()));
  }
}

Future<void> main(List<String> arguments) async {
  final response = await ask(arguments[0], arguments[1], stdout.write);
  stderr.writeln('\n[${response['status']}]');
}
