// OpenAI's agents: by `responses`, which is their default, or by `chats`. By responses they take an answer that is cut
// off for a failure, so a schema ends most answers here: a model with random weights does not by itself.
import assert from 'node:assert/strict';
import { inspect } from 'node:util';
import { Agent, OpenAIProvider, Runner, tool } from '@openai/agents';
import { z } from 'zod';
import {
  bound_tokens,
  chat_model,
  digits,
  engine,
  places,
  run,
  server,
  story,
  story_tokens,
  thrownBy,
  tools_model,
  way,
} from './checks.mjs';

const runner = new Runner({
  modelProvider: new OpenAIProvider({ ...server, useResponses: way === 'responses' }),
  tracingDisabled: true,
});
const agent = (model, more = {}, settings = {}) =>
  new Agent({
    name: 'teller',
    instructions: 'Be brief.',
    model,
    modelSettings: { maxTokens: story_tokens, temperature: 0, ...settings },
    ...more,
  });

const outputType = z.object({ digit: z.enum(digits) });
const bound = (model, more = {}, settings = {}) =>
  agent(model, { outputType, ...more }, { maxTokens: bound_tokens, ...settings });

await run({
  async chat() {
    const ask = () => runner.run(agent(chat_model), story);
    if (way === 'responses') assert.match((await thrownBy(ask)).message, /response\.incomplete/);
    else {
      const { finalOutput, rawResponses } = await ask();
      assert.ok(finalOutput.length > 0);
      assert.equal(rawResponses[0].usage.outputTokens, story_tokens);
    }
    assert.equal((await thrownBy(() => runner.run(agent('none'), story))).status, 404);
  },

  async stream() {
    if (way === 'responses' && engine === 'vllm') {
      // It has lists among the details of its usage, which this client takes for no answer.
      const stream = await runner.run(bound(chat_model), story, { stream: true });
      const error = await thrownBy(async () => {
        for await (const _ of stream.toTextStream());
        await stream.completed;
      });
      assert.match(inspect(error), /inputTokensDetails/);
      return;
    }
    const whole = await runner.run(bound(chat_model), story);
    const stream = await runner.run(bound(chat_model), story, { stream: true });
    let text = '';
    for await (const part of stream.toTextStream()) text += part;
    await stream.completed;
    assert.deepEqual(JSON.parse(text), whole.finalOutput);
  },

  async tools() {
    const called = [];
    const weather = tool({
      name: 'weather',
      description: 'The weather of a place',
      parameters: z.object({ place: z.enum(places) }),
      execute: async ({ place }) => {
        called.push(place);
        return 'Fine.';
      },
    });
    // Beside a schema vLLM makes no calls: there the result of the call is the end.
    const calling =
      engine === 'native'
        ? bound(tools_model, { tools: [weather] }, { toolChoice: 'weather' })
        : agent(
            tools_model,
            { tools: [weather], toolUseBehavior: 'stop_on_first_tool' },
            { toolChoice: 'weather', maxTokens: bound_tokens },
          );
    const { newItems, finalOutput } = await runner.run(calling, 'How is the weather?', { maxTurns: 4 });
    assert.ok(places.includes(called[0]));
    const kinds = newItems.map(({ type }) => type);
    assert.deepEqual(kinds.slice(0, 2), ['tool_call_item', 'tool_call_output_item']);
    if (engine === 'native') assert.ok(digits.includes(finalOutput.digit));
    else assert.equal(finalOutput, 'Fine.');
  },

  async schema() {
    const { finalOutput } = await runner.run(bound(chat_model), story);
    assert.ok(digits.includes(finalOutput.digit));
  },
});
