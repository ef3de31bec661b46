import { HpcserveError } from '../../../spec/errors/error.ts';
import type { AddForm } from '../../text/grammar/gbnf.ts';
import { type ToolFormat, toolCalls } from '../../text/tools/tool-format.ts';
import type { ToolFunction } from '../../text/tools/tool-function.ts';
import { BodyReader, isObject, type Json } from './body-reader.ts';

export interface ToolRequest {
  /** As the client sent them, for the chat template. */
  definitions: Json[];
  format: ToolFormat;
  names: string[];
  /** JSON schemas of arguments, by name. */
  schemas: ReadonlyMap<string, Json>;
  /** What a call may be. */
  calls: AddForm;
  /** Whether a call must be made. */
  forced: boolean;
  /** Asked as `functions`: the answer has one call, as `function_call`. */
  as_function: boolean;
}

/** OpenAI's bound is 128. Lower: less work for hostile requests; higher: larger collections of tools. */
const tools_max = 2000;

/**
 * @param format how the model's template writes calls; undefined where it has no tools
 * @returns undefined where no tools are offered, or none may be called
 */
export function readTools(body: BodyReader, format: ToolFormat | undefined): ToolRequest | undefined {
  const functions = body.list('functions');
  const as_function = functions !== undefined;
  if (as_function && body.list('tools')) body.refuse('functions', 'cannot be combined with `tools`');
  const definitions = functions?.map((described) => ({ type: 'function', function: described }));
  const { tools, choice } = as_function
    ? readFunctions(body, functions)
    : readOffered(body, body.list('tools') ?? []);
  const parallel = body.boolean('parallel_tool_calls') ?? true;
  if (tools.length === 0 || choice === 'none') return undefined;
  if (!format)
    throw new HpcserveError('E_REQUEST_UNSUPPORTED', {
      what: "the model's chat template has no tools, or calls in a form that is not read here",
      try: 'leave out `tools`, or choose a model that was trained to call tools',
      details: { param: 'tools' },
    });
  const allowed = tools.filter(({ name }) => mayBeCalled(name, choice));
  if (allowed.length === 0) return undefined;
  const several = parallel && (typeof choice === 'string' || 'names' in choice) && !as_function;
  const forced = (typeof choice === 'string' ? choice : choice.mode) === 'required';
  const all = definitions ?? body.list('tools')!;
  return {
    // What is allowed binds a call that must be made; a model that may also write text is shown no other function.
    definitions: forced ? all : all.filter((_, index) => mayBeCalled(tools[index]!.name, choice)),
    format,
    names: (forced ? tools : allowed).map(({ name }) => name),
    schemas: new Map(tools.map(({ name, parameters }) => [name, parameters])),
    as_function,
    calls: toolCalls(format, allowed, several, body.warnings),
    forced,
  };
}

type Choice = 'none' | 'auto' | 'required' | NamedChoice | AllowedTools;

interface NamedChoice {
  mode: 'required';
  name: string;
}

/** Some of the functions, as OpenAI's `allowed_tools`. */
interface AllowedTools {
  mode: 'auto' | 'required';
  names: ReadonlySet<string>;
}

function mayBeCalled(name: string, choice: Choice): boolean {
  if (typeof choice === 'string') return choice !== 'none';
  return 'names' in choice ? choice.names.has(name) : choice.name === name;
}

function readOffered(
  body: BodyReader,
  definitions: readonly Json[],
): { tools: ToolFunction[]; choice: Choice } {
  checkCount(body, 'tools', definitions);
  body.unsupported('function_call', 'it belongs to `functions`; beside `tools` use `tool_choice`');
  const tools = definitions.map((tool, index) => readTool(tool, `tools.${index}`));
  return { tools, choice: readChoice(body, tools) };
}

/** The API before tools: functions without a type around them, and what is to be called by its bare name. */
function readFunctions(
  body: BodyReader,
  definitions: readonly Json[],
): { tools: ToolFunction[]; choice: Choice } {
  checkCount(body, 'functions', definitions);
  body.unsupported('tool_choice', 'it belongs to `tools`; beside `functions` use `function_call`');
  const tools = definitions.map((described, index) => {
    const path = `functions.${index}`;
    return readFunction(new BodyReader(described, path), [path]);
  });
  const choice = body.raw('function_call') ?? 'auto';
  if (choice === 'none' || choice === 'auto') return { tools, choice };
  if (typeof choice === 'string')
    return body.refuse('function_call', 'must be none, auto, or an object that names a function');
  const reader = new BodyReader(choice, 'function_call');
  const name = named(reader, reader.string('name'), 'name', tools, 'functions');
  return { tools, choice: { mode: 'required', name } };
}

function checkCount(body: BodyReader, param: string, { length }: readonly Json[]): void {
  if (length > tools_max) body.refuse(param, `may hold at most ${tools_max} tools`);
}

function readTool(tool: Json, path: string): ToolFunction {
  const reader = new BodyReader(tool, path);
  const type = reader.oneOf('type', ['function']);
  if (type === undefined) reader.refuse('type', 'is required');
  const described = reader.object('function');
  if (!described) return reader.refuse('function', 'is required');
  return readFunction(described, [path, 'function']);
}

function readFunction(described: BodyReader, path: readonly string[]): ToolFunction {
  const name = described.string('name');
  if (name === undefined || !/^[a-zA-Z0-9_.-]{1,128}$/.test(name))
    return described.refuse('name', 'is required: up to 128 letters, digits, `_`, `.` and `-`');
  described.ignore('description');
  const strict = described.boolean('strict') ?? false;
  const parameters = described.raw('parameters') ?? {};
  described.finish();
  return {
    name,
    path: [...path, 'parameters'],
    parameters: takesNothing(parameters) ? none : parameters,
    strict,
  };
}

/** Of a function that takes nothing. */
const none: Json = { type: 'object', properties: {}, additionalProperties: false };

/** Whether parameters name none and say nothing of others, as those that take nothing are written. */
function takesNothing(parameters: Json): boolean {
  if (!isObject(parameters)) return false;
  const {
    type = 'object',
    properties = {},
    required = [],
    title,
    description,
    $schema,
    ...more
  } = parameters;
  const named = [properties, required, more].flatMap((one) => Object.keys(one ?? {}));
  return type === 'object' && named.length === 0;
}

function readChoice(body: BodyReader, tools: readonly ToolFunction[]): Choice {
  const choice = body.raw('tool_choice');
  if (choice === undefined) return 'auto';
  if (choice === 'none' || choice === 'auto') return choice;
  if (tools.length === 0) return body.refuse('tool_choice', 'is only allowed where `tools` are given');
  if (choice === 'required') return choice;
  if (typeof choice === 'string')
    return body.refuse('tool_choice', 'must be none, auto, required, or an object that names a function');
  const reader = new BodyReader(choice, 'tool_choice');
  if (reader.oneOf('type', ['function', 'allowed_tools']) === 'allowed_tools')
    return readAllowed(reader, tools);
  return { mode: 'required', name: readNamed(reader, tools) };
}

function readAllowed(choice: BodyReader, tools: readonly ToolFunction[]): AllowedTools {
  const reader = choice.object('allowed_tools');
  if (!reader) return choice.refuse('allowed_tools', 'is required');
  const mode = reader.oneOf('mode', ['auto', 'required']);
  if (mode === undefined) return reader.refuse('mode', 'is required');
  const listed = reader.list('tools');
  if (!listed) return reader.refuse('tools', 'is required');
  const names = listed.map((tool, index) => {
    const one = new BodyReader(tool, reader.path(`tools.${index}`));
    one.oneOf('type', ['function']);
    return readNamed(one, tools);
  });
  if (mode === 'required' && names.length === 0)
    return reader.refuse('tools', 'must name a function where one is to be called');
  return { mode, names: new Set(names) };
}

function readNamed(reader: BodyReader, tools: readonly ToolFunction[]): string {
  return named(reader, reader.object('function')?.string('name'), 'function.name', tools, 'tools');
}

function named(
  reader: BodyReader,
  name: string | undefined,
  param: string,
  tools: readonly ToolFunction[],
  among: string,
): string {
  if (name === undefined) return reader.refuse(param, 'is required');
  if (tools.some((tool) => tool.name === name)) return name;
  return reader.refuse(param, `is ${name}, which is not among \`${among}\``);
}
