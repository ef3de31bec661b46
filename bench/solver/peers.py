"""General solvers beside ours: one JSON request a line on stdin, one JSON answer a line on stdout.

Request: {"solver": "cp-sat" | "highs", "counts": [...], "shares": S, "options": [[{type, devices, share, cost}]],
"limit_s": t}. Answer: {"status", "objective", "chosen": [[option indices]], "solve_s", "best_s"}: seconds inside the
solver's own call, model building left out, and seconds until its last improvement (null where unknown).
"""
import json
import math
import sys
import time


def cp_sat(request):
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    choose = [[model.new_bool_var("") for _ in options] for options in request["options"]]
    for options, row in zip(request["options"], choose):
        model.add(sum(o["share"] * x for o, x in zip(options, row)) == request["shares"])
        for kind in {o["type"] for o in options}:
            model.add_at_most_one(x for o, x in zip(options, row) if o["type"] == kind)
    pairs = [(o, x) for options, row in zip(request["options"], choose) for o, x in zip(options, row)]
    for kind, count in enumerate(request["counts"]):
        model.add(sum(o["devices"] * x for o, x in pairs if o["type"] == kind) <= count)
    model.minimize(sum(o["cost"] * x for o, x in pairs))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = request["limit_s"]
    start = time.perf_counter()

    class Watch(cp_model.CpSolverSolutionCallback):
        best_s = None

        def on_solution_callback(self):
            self.best_s = time.perf_counter() - start

    watch = Watch()
    status = solver.solve(model, watch)
    solve_s = time.perf_counter() - start
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return {
        "status": "optimal" if status == cp_model.OPTIMAL else solver.status_name(status).lower(),
        "objective": round(solver.objective_value) if found else None,
        "chosen": [[i for i, x in enumerate(row) if solver.value(x)] for row in choose] if found else None,
        "solve_s": solve_s,
        "best_s": watch.best_s,
    }


def highs(request):
    import highspy
    import numpy

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 0.999)
    solver.setOptionValue("time_limit", float(request["limit_s"]))
    options = [(m, o) for m, row in enumerate(request["options"]) for o in row]
    for _, option in options:
        solver.addCol(float(option["cost"]), 0.0, 1.0, 0, numpy.array([], dtype=numpy.int32), numpy.array([]))
    columns = numpy.arange(len(options), dtype=numpy.int32)
    solver.changeColsIntegrality(len(options), columns, numpy.array([highspy.HighsVarType.kInteger] * len(options)))

    def row(low, high, terms):
        at = numpy.array([index for index, _ in terms], dtype=numpy.int32)
        solver.addRow(low, high, len(terms), at, numpy.array([float(value) for _, value in terms]))

    for model in range(len(request["options"])):
        own = [(i, o) for i, (m, o) in enumerate(options) if m == model]
        row(request["shares"], request["shares"], [(i, o["share"]) for i, o in own])
        for kind in {o["type"] for _, o in own}:
            row(-highspy.kHighsInf, 1.0, [(i, 1) for i, o in own if o["type"] == kind])
    for kind, count in enumerate(request["counts"]):
        row(-highspy.kHighsInf, float(count), [(i, o["devices"]) for i, (_, o) in enumerate(options) if o["type"] == kind])
    best_s = None

    def improved(_event):
        nonlocal best_s
        best_s = time.perf_counter() - start

    # Told since highspy 1.8; without it the time to the best plan stays unknown.
    told = hasattr(solver, "cbMipImprovingSolution")
    if told:
        solver.cbMipImprovingSolution += improved
    start = time.perf_counter()
    solver.run()
    solve_s = time.perf_counter() - start
    # Solved before the search began: the first solution was the best one.
    if told and best_s is None:
        best_s = solve_s
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    values = list(solver.getSolution().col_value)
    objective = solver.getInfo().objective_function_value
    # Stopped before its first plan, its objective is infinite.
    found = len(values) == len(options) and math.isfinite(objective)
    chosen = [[] for _ in request["options"]]
    position = [0] * len(chosen)
    for (model, _), value in zip(options, values if found else []):
        if value > 0.5:
            chosen[model].append(position[model])
        position[model] += 1
    return {
        "status": "optimal" if optimal else "stopped",
        "objective": round(objective) if found else None,
        "chosen": chosen if found else None,
        "solve_s": solve_s,
        "best_s": best_s,
    }


for line in sys.stdin:
    job = json.loads(line)
    answer = cp_sat(job) if job["solver"] == "cp-sat" else highs(job)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
