import { HpcserveError } from '../../../spec/errors/error.ts';
import { type ToolFormat, type ToolFunction, toolGrammar } from '../../text/tools/tool-format.ts';
import { BodyReader, type Json } from './body-reader.ts';

export interface ToolRequest {
  /** As the client sent them, for the chat template. */
  definitions: Json[];
  format: ToolFormat;
  names: string[];
  /** GBNF where a call must be made. */
  grammar?: string;
}

/** OpenAI's bound is 128. Lower: less work for hostile requests; higher: larger collections of tools. */
const tools_max = 2000;

/**
 * @param format how the model's template writes calls; undefined where it has no tools
 * @returns undefined where no tools are offered, or none may be called
 */
export function readTools(body: BodyReader, format: ToolFormat | undefined): ToolRequest | undefined {
  body.unsupported('functions', 'it was replaced by `tools`');
  body.unsupported('function_call', 'it was replaced by `tool_choice`');
  const definitions = body.list('tools');
  if (definitions && definitions.length > tools_max)
    body.refuse('tools', `may hold at most ${tools_max} tools`);
  const parallel = body.boolean('parallel_tool_calls') ?? true;
  const tools = (definitions ?? []).map((tool, index) => readTool(tool, `tools.${index}`));
  const choice = readChoice(body, tools);
  if (tools.length === 0 || choice === 'none') return undefined;
  if (!format)
    throw new HpcserveError('E_REQUEST_UNSUPPORTED', {
      what: "the model's chat template has no tools",
      try: 'leave out `tools`, or choose a model that was trained to call tools',
      details: { param: 'tools' },
    });
  const request = { definitions: definitions!, format, names: tools.map(({ name }) => name) };
  if (choice === 'auto') return request;
  const allowed = choice === 'required' ? tools : tools.filter(({ name }) => name === choice.name);
  return { ...request, grammar: toolGrammar(format, allowed, parallel && choice === 'required') };
}

function readTool(tool: Json, path: string): ToolFunction {
  const reader = new BodyReader(tool, path);
  const type = reader.oneOf('type', ['function']);
  if (type === undefined) reader.refuse('type', 'is required');
  const described = reader.object('function');
  if (!described) return reader.refuse('function', 'is required');
  const name = described.string('name');
  if (name === undefined || !/^[a-zA-Z0-9_.-]{1,128}$/.test(name))
    return described.refuse('name', 'is required: up to 128 letters, digits, `_`, `.` and `-`');
  described.ignore('description', 'strict');
  const parameters = described.raw('parameters');
  described.finish();
  return {
    name,
    path: [path, 'function', 'parameters'],
    ...(parameters === undefined ? {} : { parameters }),
  };
}

function readChoice(
  body: BodyReader,
  tools: readonly ToolFunction[],
): 'none' | 'auto' | 'required' | { name: string } {
  const choice = body.raw('tool_choice');
  if (choice === undefined) return 'auto';
  if (choice === 'none' || choice === 'auto') return choice;
  if (tools.length === 0) return body.refuse('tool_choice', 'is only allowed where `tools` are given');
  if (choice === 'required') return choice;
  if (typeof choice === 'string')
    return body.refuse('tool_choice', 'must be none, auto, required, or an object that names a function');
  const reader = new BodyReader(choice, 'tool_choice');
  reader.oneOf('type', ['function']);
  const name = reader.object('function')?.string('name');
  if (name === undefined) return reader.refuse('function.name', 'is required');
  if (!tools.some((tool) => tool.name === name))
    reader.refuse('function.name', `is ${name}, which is not among \`tools\``);
  return { name };
}
